"""Two runs side by side: which differences are larger than what either run varied by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from extractor.benchmarks.results import Results
from extractor.benchmarks.table import Range, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`old` and `new` are speeds relative to the baseline where both rows have one: a slower machine slows both.
    Else they are the values themselves. `change`: 0.1 is 10% better. `beyond`: the quartiles do not overlap; never
    so for what was measured once, which has no spread."""

    question: str
    title: str
    variant: str
    kind: str
    old: Range
    new: Range
    change: float
    beyond: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    differences: tuple[Difference, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    warnings: tuple[str, ...]


def compare(old: Results, new: Results) -> Comparison:
    """Rows are the same where question, title (it names the sizes) and variant are."""
    old_rows, new_rows = dict(_rows(old)), dict(_rows(new))
    both = [key for key in old_rows if key in new_rows]
    return Comparison(
        tuple(_difference(key, old_rows[key], new_rows[key]) for key in both),
        tuple(" / ".join(key) for key in old_rows if key not in new_rows),
        tuple(" / ".join(key) for key in new_rows if key not in old_rows),
        tuple(_warnings(old, new)),
    )


Key = tuple[str, str, str]


def _rows(results: Results) -> Iterator[tuple[Key, tuple[Row, bool]]]:
    for question in results.questions:
        for table in question.tables:
            for row in table.rows:
                yield (question.name, table.title, row.variant), (row, row.variant == table.baseline)


def _difference(key: Key, old: tuple[Row, bool], new: tuple[Row, bool]) -> Difference:
    (old_row, is_baseline), (new_row, _) = old, new
    relative = old_row.speed is not None and new_row.speed is not None and not is_baseline
    a, b = (old_row.speed, new_row.speed) if relative else (old_row.value, new_row.value)
    assert a is not None
    assert b is not None
    ratio = b.median / a.median if relative else a.median / b.median
    return Difference(
        question=key[0],
        title=key[1],
        variant=key[2],
        kind="speed" if relative else "value",
        old=a,
        new=b,
        change=ratio - 1,
        beyond=min(old_row.rounds, new_row.rounds) > 1 and a.apart(b),
    )


def _warnings(old: Results, new: Results) -> Iterator[str]:
    if old.toy or new.toy:
        yield "at least one run has toy sizes: its figures mean nothing"
    for name in old.machine.keys() | new.machine.keys():
        was, now = old.machine.get(name, "unknown"), new.machine.get(name, "unknown")
        if was != now:
            yield f"{name} differs: {was}; {now}"
