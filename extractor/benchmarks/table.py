"""One comparison: variants that did the same work, and how each did beside the baseline."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Range:
    """Median and quartiles of what was measured in all rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Range:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def apart(self, other: Range) -> bool:
        """Whether the ranges between the quartiles have nothing in common."""
        return self.high < other.low or other.high < self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One variant. `value` in the table's unit, less is better; `speed` is baseline / variant, taken round by round,
    so that what slows the machine for a while slows both; `rate` in the table's rate unit; `note` says what the
    variant leaves out or adds; `extra` is whatever else it counted."""

    variant: str
    value: Range
    rounds: int
    speed: Range | None = None
    rate: float | None = None
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`title` names the work and its sizes: rows of two runs are compared where title and variant are equal."""

    title: str
    rows: tuple[Row, ...]
    unit: str = "s"
    baseline: str | None = None
    rate_unit: str = ""
    remark: str = ""

    @classmethod
    def of_rounds(
        cls,
        title: str,
        measured: Mapping[str, Sequence[float]],
        *,
        baseline: str | None = None,
        work: float | None = None,
        notes: Mapping[str, str] | None = None,
        extra: Mapping[str, dict[str, Any]] | None = None,
        **fields: Any,
    ) -> Table:
        """From the values of each variant in each round, round n of all taken side by side. `work` / value = rate."""
        against = measured.get(baseline or "")
        rows = []
        for name, values in measured.items():
            value = Range.of(values)
            rows.append(
                Row(
                    variant=name,
                    value=value,
                    rounds=len(values),
                    speed=_speed(against, values),
                    rate=None if work is None else work / value.median,
                    note=(notes or {}).get(name, ""),
                    extra=(extra or {}).get(name, {}),
                )
            )
        return cls(title=title, rows=tuple(rows), baseline=baseline, **fields)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Table:
        return cls(**{**raw, "rows": tuple(_row(row) for row in raw["rows"])})


def _speed(against: Sequence[float] | None, values: Sequence[float]) -> Range | None:
    if against is None or len(against) != len(values):
        return None
    return Range.of([base / own for base, own in zip(against, values, strict=True)])


def _row(raw: dict[str, Any]) -> Row:
    speed = raw["speed"]
    return Row(**{**raw, "value": Range(**raw["value"]), "speed": Range(**speed) if speed else None})
