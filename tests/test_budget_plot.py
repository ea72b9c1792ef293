"""The picture of cost by source and cap: its numbers, its file, and what is said when it can't be drawn."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from extractor.budget.lengths import LengthCounts
from extractor.budget.plot import costs, draw_costs, require_plot
from extractor.budget.rates import stated
from extractor.budget.rows import Price
from extractor.cli import main
from extractor.errors import UsageError

PRICE = Price(bytes_per_token=100, rate=None, codec_ratio=None)


def test_costs_by_source_and_cap_largest_first():
    corpus = {"small": LengthCounts.of([5, 50]), "large": LengthCounts.of([100])}
    assert costs(corpus, [10, None]) == [("large", [10, 100]), ("small", [15, 55])]


def test_the_smallest_of_many_sources_are_one_bar():
    corpus = {f"s{i}": LengthCounts.of([i]) for i in range(1, 21)}
    rows = costs(corpus, [None])
    assert len(rows) == 12
    assert rows[-1] == ("9 others", [sum(range(1, 10))])
    assert sum(tokens for _, (tokens,) in rows) == sum(range(1, 21))


@pytest.mark.parametrize("rate", [None, stated(5.0, "test")])
def test_bars_have_the_heights_of_the_plan(tmp_path, monkeypatch, rate):
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    bars: list[tuple[str, list[float], list[float]]] = []
    real = Axes.bar

    def bar(axes, names, heights, **options):
        bars.append((options["label"], list(heights), list(options["bottom"])))
        return real(axes, names, heights, **options)

    monkeypatch.setattr(Axes, "bar", bar)
    gib = 1 << 30
    corpus = {"a": LengthCounts.of([gib // 100]), "b": LengthCounts.of([gib // 50])}
    file = tmp_path / "plan.png"
    draw_costs(file, corpus, [gib // 200], Price(bytes_per_token=100, rate=rate, codec_ratio=None))
    assert [label for label, *_ in bars] == ["b", "a"]
    assert bars[0][1] == pytest.approx([0.5, 2], rel=1e-6)
    assert bars[1][1] == pytest.approx([0.5, 1], rel=1e-6)
    assert bars[1][2] == pytest.approx([0.5, 2], rel=1e-6)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_the_command_draws(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "d.jsonl").write_text(json.dumps({"seq_len": 7}) + "\n")
    file = tmp_path / "plan.svg"
    arguments = ["plan", str(tmp_path / "d.jsonl"), "--hidden-size", "4", "--num-layers", "8", "--rate", "3"]
    assert main([*arguments, "--plot", str(file)]) == 0
    assert "<svg" in file.read_text()


def test_matplotlib_missing_is_said_before_anything_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ["plan", str(tmp_path / "none"), "--hidden-size", "4", "--num-layers", "8"]
    assert main([*arguments, "--plot", str(tmp_path / "x.png")]) == 2
    assert 'install "hidden-state-extractor[plot]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.txt", "is no picture"),
        ("none/x.png", "folder that does not exist"),
        ("folder.png", "can't be written there"),
    ],
)
def test_a_file_that_can_not_be_drawn(tmp_path, name, message):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UsageError, match=message):
        require_plot(Path(tmp_path / name))


def test_a_picture_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "d.jsonl").write_text(json.dumps({"seq_len": 7}) + "\n")
    file = tmp_path / "plan.png"
    file.write_bytes(b"earlier")
    arguments = ["plan", str(tmp_path / "d.jsonl"), "--hidden-size", "4", "--num-layers", "8", "--plot", str(file)]

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert main(arguments) == 1
    assert f"no room to write {file}" in capsys.readouterr().err
    assert file.read_bytes() == b"earlier"
    assert main(arguments) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
