"""What a person reads after a run: whole paths, and whose counts they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from extractor.cli.extract_command import _say_how_it_ended
from extractor.demo.run import DemoResult, verdict
from extractor.fidelity import LayerError
from extractor.progress import print_summary
from extractor.summary import nothing_to_do
from extractor.verify import ReferenceReport

LONG = Path("/a") / ("long-name/" * 30)


def test_paths_are_never_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    summary = replace(nothing_to_do(LONG, 0), findings=1, findings_file=LONG / "runs" / "x.findings.jsonl")
    print_summary(summary)
    lines = capsys.readouterr().out.splitlines()
    assert f"store {LONG}" in lines
    assert f"listed in {LONG / 'runs' / 'x.findings.jsonl'}" in lines


def test_counts_beside_earlier_runs_say_that_they_are_of_this_one(capsys):
    for stored, said in ((0, False), (7, True)):
        summary = nothing_to_do(Path("s"), stored)
        print_summary(summary)
        _say_how_it_ended(summary)
        printed = capsys.readouterr()
        assert ("saturated values of this run" in printed.out) is said
        assert ("counts and exit code are of this run; `extractor inspect s`" in printed.err) is said


def test_the_demo_says_whether_it_worked():
    for beyond, word in ((0, "worked"), (1, "failed")):
        report = ReferenceReport(["a", "b"], [LayerError(layer_id=2, elements=9, beyond_tolerance=beyond)])
        assert word in verdict(DemoResult(nothing_to_do(Path("s"), 2), report))
