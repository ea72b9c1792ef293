"""`extractor bench`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extractor.benchmarks.comparison import Comparison
    from extractor.benchmarks.results import Results

HELP = "measure what the extractor costs on this machine, beside the machine's own limits and other tools"
EXAMPLE = "extractor bench pipeline store_write --dir /mnt/nvme"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all; --list names them)")
    parser.add_argument("--list", action="store_true", help="print the benchmarks and their questions, run nothing")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="compare two results files")
    parser.add_argument(
        "--out", type=Path, default=Path("bench/results"), metavar="DIR", help="results (default: bench/results)"
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="write on this disk (default: the temporary folder's)")
    parser.add_argument("--memory-dir", type=Path, default=Path("/dev/shm"), metavar="DIR", help="a tmpfs, /dev/shm")
    parser.add_argument(
        "--toy", action="store_true", help="tiny sizes: shows that the benchmarks run, measures nothing"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """0 when all benchmarks ran, 1 when one failed. What can't be measured here is named, and no failure."""
    if args.list:
        return _list(args.json)
    if args.compare:
        return _compare(*args.compare, as_json=args.json)
    return _measure(args)


def _list(as_json: bool) -> int:
    from extractor.benchmarks.catalog import questions

    found = questions()
    if as_json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:<14}{question}" for name, question in found.items()))
    return 0


def _measure(args: argparse.Namespace) -> int:
    from extractor.benchmarks.markdown import to_markdown
    from extractor.benchmarks.running import Places, run_benchmarks

    disk = args.dir or Path(tempfile.gettempdir())
    places = Places(disk=disk, memory=args.memory_dir, toy=args.toy)
    results = run_benchmarks(args.names, places, tell=lambda line: print(line, file=sys.stderr))
    _write(results, args.out)
    print(results.to_json() if args.json else to_markdown(results))
    return 1 if any(question.failed for question in results.questions) else 0


def _write(results: Results, folder: Path) -> None:
    from extractor.benchmarks import chart
    from extractor.benchmarks.markdown import to_markdown
    from extractor.output import write_whole

    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / results.name
    write_whole(stem.with_name(f"{stem.name}.json"), results.to_json().encode())
    write_whole(stem.with_name(f"{stem.name}.md"), to_markdown(results).encode())
    drawn = [question for question in results.questions if question.tables]
    if chart.can_draw():
        for question in drawn:
            chart.draw(results, question, stem.with_name(f"{stem.name}-{question.name}.png"))
    else:
        print("charts need matplotlib; pip install 'hidden-state-extractor[plot]'", file=sys.stderr)
    print(f"written: {stem}.json, .md{' and charts' if chart.can_draw() and drawn else ''}", file=sys.stderr)


def _compare(old: Path, new: Path, *, as_json: bool) -> int:
    from extractor.benchmarks.comparison import compare
    from extractor.benchmarks.results import Results

    comparison = compare(Results.load(old), Results.load(new))
    if as_json:
        print(json.dumps(asdict(comparison)))
    else:
        _print(comparison)
    return 0


def _print(comparison: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    table = Table("benchmark", "variant", "old", "new", "change", "", title="* is beyond the spread of both runs")
    for d in comparison.differences:
        old, new = (
            f"{r.median:.4g} [{r.low:.4g}, {r.high:.4g}]{'x' if d.kind == 'speed' else ''}" for r in (d.old, d.new)
        )
        table.add_row(f"{d.question}: {d.title}", d.variant, old, new, f"{d.change:+.1%}", "*" if d.beyond else "")
    console.print(table)
    for name, keys in (("only in the first", comparison.only_old), ("only in the second", comparison.only_new)):
        for key in keys:
            console.print(f"{name}: {key}", soft_wrap=True)
    for warning in comparison.warnings:
        print(f"warning: {warning}", file=sys.stderr)
