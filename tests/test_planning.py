"""`plan` against the corpus that the project was born from, and against arithmetic done by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extractor import disk
from extractor.cli import main
from extractor.errors import InputError, UsageError
from extractor.planning import PlanConfig, plan

KIMI = {"hidden_size": 7168, "num_layers": 61, "baseline": "23.1M/19"}
KIMI_OPTIONS = ["--hidden-size", "7168", "--num-layers", "61", "--baseline", "23.1M/19"]


def gib(size_bytes: int) -> float:
    return round(size_bytes / 2**30, 1)


@pytest.fixture(scope="module")
def corpus(shared_data: Path) -> Path:
    return shared_data / "seed_corpus"


@pytest.fixture
def dataset(tmp_path):
    """Two sources whose sums are done in the head: long = 2 x 1,000 tokens, short = 8 x 10 tokens."""
    for name, lengths in {"long": [1000, 1000], "short": [10] * 8}.items():
        (tmp_path / name).mkdir()
        lines = [json.dumps({"id": f"{name}-{i}", "seq_len": n}) for i, n in enumerate(lengths)]
        (tmp_path / name / "tokenized_data.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def small(dataset: Path, **options) -> PlanConfig:
    return PlanConfig(data=(dataset,), **{"hidden_size": 4, "num_layers": 8, "rate": "100", **options})


def scenario(result, name: str):
    return next(row for row in result.scenarios if row.scenario == name)


def test_the_whole_corpus(corpus):
    result = plan(PlanConfig(data=(corpus,), **KIMI))
    assert result.geometry.layer_ids == (2, 30, 58)
    assert result.geometry.bytes_per_token == 43_008
    assert (result.total.samples, result.total.tokens) == (40_114, 138_400_000)
    assert result.total.size_bytes == 138_400_000 * 43_008
    assert gib(result.total.size_bytes) == 5_543.5
    assert round(result.total.hours, 1) == 113.8
    assert result.chosen.scenario == "as is"
    assert len(result.sources) == 10


def test_the_source_that_drives_the_cost(corpus):
    result = plan(PlanConfig(data=(corpus,), **KIMI))
    first = result.sources[0]
    assert (first.source, first.samples, first.tokens) == ("A1_deepswekimi", 2_800, 44_900_000)
    assert (round(100 * first.sample_share, 1), round(100 * first.token_share, 1)) == (7.0, 32.4)
    assert [row.source for row in result.sources if row.heavy] == ["A1_deepswekimi"]


def test_capped_at_8192(corpus):
    result = plan(PlanConfig(data=(corpus,), max_length=8192, **KIMI))
    assert result.chosen.scenario == "capped at 8,192"
    assert result.chosen.tokens == 110_737_600
    assert gib(result.chosen.size_bytes) == 4_435.5
    assert round(result.chosen.hours, 1) == 91.1
    cap = next(row for row in result.caps if row.cap_tokens == 8192)
    assert (cap.chosen, cap.kept_tokens, cap.dropped_tokens) == (True, 110_737_600, 27_662_400)


def test_without_the_heavy_source_and_capped(corpus):
    result = plan(PlanConfig(data=(corpus,), max_length=8192, drop=("A1",), **KIMI))
    chosen = result.chosen
    assert chosen.scenario == "without A1_deepswekimi, capped at 8,192"
    assert (chosen.samples, chosen.tokens) == (37_314, 87_800_000)
    assert gib(chosen.size_bytes) == 3_516.8
    assert round(chosen.hours, 1) == 72.2


def test_the_last_layer_makes_four(corpus):
    result = plan(PlanConfig(data=(corpus,), last=True, **KIMI))
    assert result.geometry.bytes_per_token == 57_344
    assert result.geometry.formula.startswith("4 layers (2, 30, 58, 61) x 7,168 values x 2 bytes = 57,344")


def test_the_command_shows_the_figures(corpus, capsys):
    assert main(["plan", str(corpus), *KIMI_OPTIONS, "--max-length", "8192", "--drop", "A1"]) == 0
    text = capsys.readouterr().out
    for figure in ("43,008 bytes per token", "5,543.5 GiB", "113.8 h", "40,114", "138,400,000", "32.4%", "7.0%"):
        assert figure in text
    for figure in ("110,737,600", "4,435.5 GiB", "91.1 h", "37,314", "87,800,000", "3,516.8 GiB", "72.2 h"):
        assert figure in text
    assert "A1_deepswekimi is out of proportion" in text


def test_json_holds_exact_integers(corpus, capsys):
    assert main(["plan", str(corpus), *KIMI_OPTIONS, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["total"]["size_bytes"] == 138_400_000 * 43_008
    assert document["geometry"]["bytes_per_token"] == 43_008
    assert isinstance(document["total"]["tokens"], int)
    assert document["total"]["hours"] == pytest.approx(138.4 / 23.1 * 19)


def test_every_number_of_a_small_plan(dataset):
    result = plan(small(dataset, max_length=100))
    long, short = result.sources
    assert (long.source, long.samples, long.tokens, long.p50_tokens, long.longest_tokens) == (
        "long",
        2,
        2000,
        1000,
        1000,
    )
    assert (short.samples, short.tokens, short.mean_tokens) == (8, 80, 10.0)
    assert (long.sample_share, long.token_share) == (0.2, 2000 / 2080)
    assert result.geometry.bytes_per_token == 3 * 4 * 2
    assert long.size_bytes == 48_000
    assert long.hours == 2000 / 100 / 3600
    cap = next(row for row in result.caps if row.cap_tokens == 100)
    assert (cap.kept_tokens, cap.dropped_tokens, cap.truncated_samples) == (280, 1800, 2)
    assert sum(b.samples for b in result.histogram) == 10
    assert sum(b.tokens for b in result.histogram) == 280


def test_scenarios_stand_side_by_side(dataset):
    result = plan(small(dataset, max_length=100, take={"short": 3}))
    tokens = {row.scenario: (row.samples, row.tokens) for row in result.scenarios}
    assert tokens == {
        "as is": (10, 2080),
        "capped at 100": (10, 280),
        "without long": (8, 80),
        "without long, capped at 100": (8, 80),
        "3 of short": (5, 2030),
        "3 of short, capped at 100": (5, 230),
    }
    assert [row.scenario for row in result.scenarios if row.chosen] == ["3 of short, capped at 100"]
    assert scenario(result, "without long").saved_bytes == 2000 * 24


def test_a_heavy_source_is_shown_dropped_and_drawn_from(dataset):
    names = [row.scenario for row in plan(small(dataset, max_length=100, take={"long": 1})).scenarios[::2]]
    assert names == ["as is", "without long", "1 of long"]


def test_several_drops_and_takes_stand_alone_and_together(tmp_path):
    for name, length in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenized_data.jsonl").write_text(f'{{"seq_len": {length}}}\n' * 3)
    result = plan(small(tmp_path, drop=("a", "b"), take={"c": 1, "d": 2}))
    assert {row.scenario: row.tokens for row in result.scenarios[::2]} == {
        "as is": 30,
        "without a": 27,
        "without b": 24,
        "without a, without b": 21,
        "1 of c": 24,
        "2 of d": 26,
        "without a, without b, 1 of c, 2 of d": 11,
    }
    assert result.chosen.tokens == 11
    assert sum(row.chosen for row in result.scenarios) == 1


def test_drop_and_take_combine(dataset):
    result = plan(small(dataset, drop=("long",), take={"short": 3}))
    assert (result.chosen.scenario, result.chosen.samples, result.chosen.tokens) == ("without long, 3 of short", 3, 30)


def test_the_seed_decides_the_draw(corpus):
    def drawn(seed: int) -> int:
        return plan(PlanConfig(data=(corpus,), take={"A1": 500}, seed=seed, **KIMI)).chosen.tokens

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert drawn(1) == pytest.approx(93_500_000 + 500 * 16_035.7, rel=0.005)


def test_without_a_rate_there_are_no_hours(dataset):
    result = plan(small(dataset, rate=None))
    assert result.rate is None
    assert result.total.hours is None
    assert result.total.size_bytes == 2080 * 24


def test_sizes_come_from_a_model_folder(dataset, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"hidden_size": 16, "num_hidden_layers": 30, "vocab_size": 9}))
    result = plan(PlanConfig(data=(dataset / "long", dataset / "short"), model=model))
    assert result.geometry.layer_ids == (2, 15, 27)
    assert result.geometry.bytes_per_token == 3 * 16 * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 0}, "--max-length is 0; a cap keeps at least 1"),
        ({"caps": (8, 0)}, "--caps is 0"),
        ({"drop": ("A9",)}, "--drop 'A9' is no source; the sources are long, short"),
        ({"take": {"nope": 3}}, "--take 'nope' is no source"),
        ({"take": {"short": 9}}, "--take short=9 asks for more than the 8 samples"),
        ({"take": {"short": 0}}, "--take short=0; at least 1"),
        ({"take": {"short": 2}, "drop": ("short",)}, "short is named by --drop and by --take"),
        ({"drop": ("short", "long")}, "nothing is left to plan"),
        ({"rate": None, "baseline": "23.1M/0"}, "both above zero"),
        ({"rate": None, "baseline": "23.1M"}, "is not TOKENS/HOURS"),
        ({"rate": "0"}, "is not a rate above zero"),
        ({"rate": "-3"}, "is not a rate above zero"),
        ({"baseline": "1M/1"}, "give one of them"),
        ({"seed": -1}, "--seed is -1"),
        ({"hidden_size": None}, "sizes are not known"),
        ({"hidden_size": 0}, "--hidden-size is 0"),
        ({"layers": "2,99"}, r"layer ids \[99\] do not exist"),
    ],
)
def test_wrong_usage_says_what_to_do(dataset, options, message):
    with pytest.raises(UsageError, match=message):
        plan(small(dataset, **options))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{data}/none", *KIMI_OPTIONS], 1, "none does not exist"),
        (["{data}", *KIMI_OPTIONS, "--max-length", "0"], 2, "--max-length is 0"),
        (["{data}", *KIMI_OPTIONS, "--drop", "A9"], 2, "is no source"),
        (["{data}", *KIMI_OPTIONS, "--caps", "8k,2"], 2, "--caps '8k,2' is not a list"),
        (["{data}", *KIMI_OPTIONS, "--take", "long"], 2, "--take 'long' is not SOURCE=K"),
        (["{data}", *KIMI_OPTIONS, "--take", "long=1", "--take", "long=2"], 2, "names a source twice"),
        (["{data}", "{data}/.", *KIMI_OPTIONS], 2, "named twice"),
        (["{data}", "--hidden-size", "4", "--num-layers", "8", "--baseline", "1M/0"], 2, "both above zero"),
    ],
)
def test_exit_codes(dataset, capsys, arguments, code, message):
    assert main(["plan", *(a.format(data=dataset) for a in arguments)]) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_bad_record_is_counted_and_named(dataset, capsys):
    file = dataset / "short" / "tokenized_data.jsonl"
    file.write_text(file.read_text() + '{"id": "x"}\nnot json\n')
    assert main(["plan", str(dataset), *KIMI_OPTIONS, "--json"]) == 3
    captured = capsys.readouterr()
    assert "for want of a usable length: 2 records" in captured.err
    assert f"{file}:9: has neither seq_len" in captured.err
    assert f"{file}:10: is not JSON" in captured.err
    document = json.loads(captured.out)
    assert document["rejected_records"] == 2
    assert document["rejects"][1]["record"] == 10
    assert document["total"]["samples"] == 10


@pytest.mark.parametrize("length", [-1, 16_777_217])
def test_an_impossible_length_stops_the_plan(dataset, length):
    file = dataset / "short" / "tokenized_data.jsonl"
    file.write_text(file.read_text() + json.dumps({"seq_len": length}) + "\n")
    with pytest.raises(InputError, match=rf"{file}:9 has an? (negative|absurd) length: {length} tokens"):
        plan(small(dataset))


def room(monkeypatch, available: int) -> None:
    stat = SimpleNamespace(f_frsize=1, f_blocks=10**9, f_bfree=available + 7, f_bavail=available)
    monkeypatch.setattr(disk.os, "statvfs", lambda _: stat)


def test_a_job_that_does_not_fit_exits_with_3(dataset, monkeypatch, capsys):
    room(monkeypatch, 1000)
    arguments = ["plan", str(dataset), "--hidden-size", "4", "--num-layers", "8", "--out", str(dataset / "store")]
    arguments += ["--look", str(dataset)]
    assert main([*arguments, "--json"]) == 3
    verdict = json.loads(capsys.readouterr().out)["room"]["verdict"]
    assert verdict["verdict"] == "does not fit"
    assert verdict["free_bytes"] == 1000
    assert verdict["need_bytes"] >= 2080 * 24
    assert verdict["short_bytes"] == verdict["need_bytes"] - 1000
    assert main(arguments) == 3
    assert "does not fit by" in capsys.readouterr().out


def test_a_job_that_fits_exits_with_0(dataset, monkeypatch, capsys):
    room(monkeypatch, 10**8)
    out = str(dataset / "store")
    arguments = ["plan", str(dataset), "--hidden-size", "4", "--num-layers", "8", "--look", str(dataset)]
    assert main([*arguments, "--out", out]) == 0
    assert "verdict: fits" in capsys.readouterr().out


def test_a_samples_file_without_a_mask_is_noted(tmp_path):
    table = pa.table({"sample_id": ["a"], "input_ids": [[1, 2]], "loss_mask": [[0, 1]]})
    pq.write_table(table, tmp_path / "masked.parquet")
    pq.write_table(table.drop_columns("loss_mask"), tmp_path / "bare.parquet")
    assert "".join(plan(small(tmp_path / "masked.parquet")).notes) == ""
    (note,) = plan(small(tmp_path / "bare.parquet")).notes
    assert "bare.parquet has no column loss_mask" in note
