"""What reading has found so far: counts of lengths by source, and the records that could not be read, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from extractor.budget.lengths import Int64s, LengthCounts
from extractor.errors import InputError

# Longer than any model's context by a factor of ten or more; it also bounds a tally to 128 MiB per source.
MAX_TOKENS = 16_777_216
_NAMED_REJECTS = 1000


@dataclass(frozen=True, slots=True)
class Reject:
    """A record without a usable length. `record` counts from 1: the line of a text file, the row of a table."""

    file: Path
    record: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.record}: {self.reason}"


@dataclass(slots=True)
class Tally:
    """Counts per source (dense by length, [longest + 1] int64); every reject is counted, the first 1,000 are named."""

    dense: dict[str, Int64s] = field(default_factory=dict)
    samples: int = 0
    rejected: int = 0
    rejects: list[Reject] = field(default_factory=list)

    def add(self, source: str, lengths: Int64s, counts: Int64s | None = None) -> None:
        """Count `lengths` [N], each in [1, MAX_TOKENS]; with `counts` [N], lengths are distinct and stand for many."""
        if not lengths.size:
            self.dense.setdefault(source, np.zeros(1, np.int64))
            return
        mine = self._room(source, int(lengths.max()))
        if counts is not None:
            mine[lengths] += counts
            self.samples += int(counts.sum())
        else:
            added = np.bincount(lengths)
            mine[: added.size] += added
            self.samples += lengths.size

    def reject(self, reject: Reject) -> None:
        self.rejected += 1
        if len(self.rejects) < _NAMED_REJECTS:
            self.rejects.append(reject)

    def lengths(self) -> dict[str, LengthCounts]:
        """Lengths per source, in the order in which the sources were met."""
        return {name: LengthCounts.from_dense(dense) for name, dense in self.dense.items()}

    def _room(self, source: str, longest: int) -> Int64s:
        mine = self.dense.get(source, np.zeros(0, np.int64))
        if mine.size <= longest:
            mine = np.concatenate([mine, np.zeros(longest + 1 - mine.size, np.int64)])
            self.dense[source] = mine
        return mine


def check_range(length: int, file: Path, record: int) -> None:
    """Raise InputError for a length that no sample can have: the data is wrong, and a plan from it would be, too."""
    if not 0 <= length <= MAX_TOKENS:
        what = "a negative length" if length < 0 else "an absurd length"
        raise InputError(
            f"{file}:{record} has {what}: {length} tokens; 1 to {MAX_TOKENS} are possible; correct the record or "
            "remove it, then plan again"
        )
