"""From the files that pytest-benchmark and pytest leave to tables, and to what was not measured.

A test that compared variants has its table in `extra_info["table"]`. Any other test is a row of its group's table.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from itertools import groupby
from pathlib import Path
from typing import Any

from extractor.benchmarks.table import Range, Row, Table

Pairs = tuple[tuple[str, str], ...]


def read_benchmarks(file: Path) -> tuple[Table, ...]:
    """Empty when nothing was measured: pytest-benchmark then leaves an empty file or none."""
    if not file.is_file() or not file.stat().st_size:
        return ()
    measured = json.loads(file.read_text("utf-8"))["benchmarks"]
    compared = [table for one in measured for table in _tables(one["extra_info"])]
    plain = sorted((one for one in measured if not _tables(one["extra_info"])), key=_title)
    return (*compared, *(Table(title=title, rows=tuple(map(_row, rows))) for title, rows in groupby(plain, key=_title)))


def read_outcomes(file: Path) -> tuple[Pairs, Pairs]:
    """(what, why) of the tests that were skipped, and of those that failed."""
    skipped: list[tuple[str, str]] = []
    failed: list[tuple[str, str]] = []
    if file.is_file():
        for case in ET.parse(file).iter("testcase"):
            for outcome in case:
                pairs = {"skipped": skipped, "failure": failed, "error": failed}.get(outcome.tag)
                if pairs is not None:
                    pairs.append((case.get("name", "?"), _reason(outcome)))
    return tuple(skipped), tuple(failed)


def _reason(outcome: ET.Element) -> str:
    """pytest's message; of a file that could not be imported, which has none, the last line of the traceback."""
    message = outcome.get("message", "").removeprefix("Skipped: ")
    if message == "collection failure":
        return (outcome.text or message).strip().splitlines()[-1].removeprefix("E").strip()
    return message


def _tables(extra_info: dict[str, Any]) -> list[Table]:
    return [Table.from_json(raw) for raw in extra_info.get("tables", ())]


def _title(measured: dict[str, Any]) -> str:
    return str(measured["group"] or _words(measured["name"].split("[")[0]))


def _row(measured: dict[str, Any]) -> Row:
    stats = measured["stats"]
    return Row(
        variant=str(measured["param"] or _words(measured["name"])),
        value=Range(stats["median"], stats["q1"], stats["q3"]),
        rounds=stats["rounds"],
        extra=measured["extra_info"],
    )


def _words(test: str) -> str:
    return test.removeprefix("test_").replace("_", " ")
