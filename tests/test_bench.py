"""`extractor bench`: each benchmark runs at toy size; results are kept, shown and compared as they were measured."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pytest_benchmark")

from extractor.benchmarks import catalog, chart
from extractor.benchmarks.comparison import compare
from extractor.benchmarks.machine import machine
from extractor.benchmarks.markdown import quantity, to_markdown
from extractor.benchmarks.pytest_files import read_benchmarks, read_outcomes
from extractor.benchmarks.results import Question, Results
from extractor.benchmarks.running import Places, run_benchmarks
from extractor.benchmarks.table import Range, Table
from extractor.cli import main
from extractor.errors import InputError, UsageError

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = {
    "end_to_end",
    "gather",
    "loader",
    "memory",
    "packing",
    "pipeline",
    "plan",
    "prepare",
    "ring",
    "store_read",
    "store_write",
    "writers",
}


@pytest.fixture(scope="module")
def all_at_toy_size(tmp_path_factory) -> Path:
    """One process for all files, because each start of Python with torch takes seconds."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "disk").mkdir()
    environment = Places(disk=folder / "disk", memory=folder, toy=True).environment()
    command = [sys.executable, "-m", "pytest", *sorted(str(catalog.folder() / f"{name}.py") for name in QUESTIONS)]
    command += ["-q", "-x", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(catalog.folder())]
    command += ["--basetemp", str(folder / "pytest")]
    command += ["--benchmark-json", str(folder / "benchmarks.json"), "--junitxml", str(folder / "outcomes.xml")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder


def test_the_questions_are_what_is_measured():
    assert set(catalog.questions()) == QUESTIONS
    assert all(question.endswith("?") for question in catalog.questions().values())


def test_every_benchmark_gives_tables(all_at_toy_size):
    tables = read_benchmarks(all_at_toy_size / "benchmarks.json")
    titles = " ".join(table.title for table in tables)
    for word in ("end to end", "gather", "loader", "memory of", "packing", "pipeline", "plan of", "store read"):
        assert word in titles
    for table in tables:
        assert table.rows, table.title
        for row in table.rows:
            assert 0 <= row.value.low <= row.value.median <= row.value.high < math.inf, (table.title, row)
            if table.baseline:
                assert row.speed is not None
        if table.baseline:
            assert next(row.speed for row in table.rows if row.variant == table.baseline) == Range(1, 1, 1)


def test_nothing_is_left_behind_by_benchmarks(all_at_toy_size):
    assert list((all_at_toy_size / "disk").iterdir()) == []


def test_a_skip_says_why_and_is_no_failure(all_at_toy_size):
    skipped, failed = read_outcomes(all_at_toy_size / "outcomes.xml")
    assert failed == ()
    assert all(reason for _, reason in skipped)


def test_command_writes_json_markdown_and_a_chart(tmp_path, capsys):
    out = tmp_path / "results"
    arguments = ["bench", "packing", "--toy", "--out", str(out), "--dir", str(tmp_path), "--memory-dir", str(tmp_path)]
    assert main(arguments) == 0
    (file,) = out.glob("*.json")
    results = Results.load(file)
    assert file.stem == results.name
    assert results.toy
    assert [question.name for question in results.questions] == ["packing"]
    assert results.questions[0].peak_mib > 1
    written = file.with_suffix(".md").read_text()
    assert written in capsys.readouterr().out + "\n"
    for table in results.questions[0].tables:
        assert f"### {table.title}" in written
        for row in table.rows:
            assert quantity(row.value, table.unit) in written
    assert (out / f"{file.stem}-packing.png").read_bytes().startswith(b"\x89PNG")
    assert Results(**{**vars_of(results)}).to_json() == file.read_text()


def vars_of(results: Results) -> dict:
    return {field.name: getattr(results, field.name) for field in dataclasses.fields(results)}


def table_of(baseline=(1.0, 1.1, 1.2, 1.1), ours=(2.0, 2.2, 2.4, 2.2), **fields) -> Table:
    return Table.of_rounds("work of 8 MB", {"memcpy": baseline, "ours": ours}, baseline="memcpy", work=8, **fields)


def results_of(*tables: Table, **fields) -> Results:
    question = Question(
        name="ring",
        question="How fast?",
        tables=tables,
        not_measured=(("zero copy", "no GPU"),),
        failed=(),
        seconds=1.0,
        peak_mib=10.0,
        load=(0.5, 0.6),
    )
    known = {"started": "2026-11-30T05:10:00+00:00", "commit": "abc1234", "toy": False}
    return Results(
        **{**known, "machine": {"processor": "x"}, "versions": {"python": "3"}, "questions": (question,), **fields}
    )


def test_speed_is_taken_round_by_round():
    # The machine slows down by 4 between the rounds; the variant is always twice as slow as its neighbour.
    table = table_of(baseline=(1.0, 4.0, 1.0), ours=(2.0, 8.0, 2.0))
    assert table.rows[1].speed == Range(0.5, 0.5, 0.5)
    assert table.rows[1].value == Range(2.0, 2.0, 5.0)
    assert table.rows[1].rate == 4


def test_unequal_rounds_have_no_speed():
    assert table_of(baseline=(1.0, 1.0), ours=(2.0,)).rows[1].speed is None


@pytest.mark.parametrize(
    ("ours", "beyond", "change"), [((4.0, 4.4, 4.8, 4.4), True, -0.5), ((2.0, 2.2, 2.4, 2.2), False, 0.0)]
)
def test_comparison_marks_what_is_beyond_the_spread(ours, beyond, change):
    difference = compare(results_of(table_of()), results_of(table_of(ours=ours))).differences[1]
    assert (difference.variant, difference.kind, difference.beyond) == ("ours", "speed", beyond)
    assert difference.change == pytest.approx(change)


def test_overlapping_spreads_are_not_marked():
    noisy = table_of(ours=(1.0, 2.2, 6.0, 3.0))
    difference = compare(results_of(table_of()), results_of(noisy)).differences[1]
    assert difference.change < -0.1
    assert not difference.beyond


def test_what_was_measured_once_has_no_spread_to_be_beyond():
    runs = [results_of(Table.of_rounds("peak", {"few": [value]}, unit="MiB")) for value in (100.0, 200.0)]
    (difference,) = compare(*runs).differences
    assert (difference.change, difference.beyond) == (-0.5, False)


def test_a_file_system_is_named_with_its_page_size(monkeypatch):
    mounts = "/dev/a / ext4 rw 0 0\ntmpfs /m tmpfs rw,size=6g 0 0\ntmpfs /m/h tmpfs rw,huge=within_size,size=6g 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda path: mounts)
    known = machine(Path("/disk"), Path("/m/x"))
    assert (known["disk folder"], known["memory folder"]) == ("ext4", "tmpfs")
    assert machine(Path("/mm"), Path("/m/h"))["memory folder"] == "tmpfs, huge=within_size"


def test_a_slower_machine_does_not_count_against_a_variant():
    slower = table_of(baseline=(2.0, 2.2, 2.4, 2.2), ours=(4.0, 4.4, 4.8, 4.4))
    baseline, ours = compare(results_of(table_of()), results_of(slower)).differences
    assert (ours.beyond, ours.change) == (False, 0.0)
    assert (baseline.kind, baseline.beyond) == ("value", True)  # the machine itself: shown, and marked


def test_comparison_names_what_only_one_run_has_and_other_machines():
    other = dataclasses.replace(table_of(), title="work of 16 MB")
    result = compare(results_of(table_of()), results_of(other, machine={"processor": "y"}, toy=True))
    assert result.differences == ()
    assert result.only_old == ("ring / work of 8 MB / memcpy", "ring / work of 8 MB / ours")
    assert len(result.warnings) == 2


def test_command_compares_two_files(tmp_path, capsys):
    for name, table in (("old", table_of()), ("new", table_of(ours=(4.0, 4.4, 4.8, 4.4)))):
        (tmp_path / f"{name}.json").write_text(results_of(table).to_json())
    assert main(["bench", "--compare", str(tmp_path / "old.json"), str(tmp_path / "new.json"), "--json"]) == 0
    assert [d["beyond"] for d in json.loads(capsys.readouterr().out)["differences"]] == [False, True]
    assert main(["bench", "--compare", str(tmp_path / "old.json"), str(tmp_path / "new.json")]) == 0
    assert "-50.0%" in capsys.readouterr().out


def test_markdown_names_what_was_not_measured():
    text = to_markdown(results_of(table_of(rate_unit="MB/s")))
    assert "* not measured: zero copy: no GPU" in text
    assert "| ours | 2.2 s [2.15, 2.25] | 0.50x [0.50, 0.50] | 3.64 | 4 |" in text


def test_charts_are_drawn_for_tables_with_and_without_a_baseline(tmp_path):
    results = results_of(table_of(), Table.of_rounds("peak", {"few": [1.0], "many": [2.0]}, unit="MiB"))
    chart.draw(results, results.questions[0], tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("content", "says"), [("{", "can't be read"), ("[]", "version None"), ('{"version": 1}', "not a whole")]
)
def test_damaged_results_are_refused(tmp_path, content, says):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError, match=says):
        Results.load(tmp_path / "x.json")


def test_wrong_use_is_named(tmp_path):
    places = Places(disk=tmp_path, memory=tmp_path)
    with pytest.raises(UsageError, match="no benchmark is called rign"):
        run_benchmarks(["rign"], places, tell=lambda line: None)
    with pytest.raises(UsageError, match="not a folder"):
        run_benchmarks(["ring"], Places(disk=tmp_path / "no", memory=tmp_path), tell=lambda line: None)


def test_a_failing_benchmark_is_reported_and_the_others_run(tmp_path, monkeypatch, capsys):
    bench = tmp_path / "bench"
    bench.mkdir()
    (bench / "good.py").write_text('"""Is it good?"""\ndef test_one(benchmark):\n    benchmark(lambda: None)\n')
    (bench / "bad.py").write_text('"""Is it bad?"""\ndef test_two(benchmark):\n    raise RuntimeError("broken disk")\n')
    (bench / "worse.py").write_text('"""Does it load?"""\nimport missing_module\ndef test_three(benchmark): ...\n')
    (bench / "helper.py").write_text('"""Not a benchmark."""\n')
    monkeypatch.setattr(catalog, "folder", lambda: bench)
    arguments = ["bench", "--out", str(tmp_path / "out"), "--dir", str(tmp_path), "--memory-dir", str(tmp_path)]
    assert main(arguments) == 1
    (file,) = (tmp_path / "out").glob("*.json")
    bad, good, worse = Results.load(file).questions
    assert "broken disk" in bad.failed[0][1]
    assert (good.failed, good.tables[0].rows[0].variant) == ((), "one")
    assert "missing_module" in worse.failed[0][1]
    assert "**failed**: test_two" in capsys.readouterr().out
