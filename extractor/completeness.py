"""Whether a store holds all that it was made for, as far as its own run records tell. The samples file is not read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """`expected`: samples of the samples file, as a run that ended by itself counted them; None where none did.
    `stopped_at`: samples that were stored when the last run was interrupted; None where the last one was not."""

    stored: int
    expected: int | None
    stopped_at: int | None

    @property
    def complete(self) -> bool | None:
        """None: not known. A run that was killed leaves no record."""
        if self.expected is not None:
            return self.stored >= self.expected
        return False if self.stopped_at is not None and self.stored <= self.stopped_at else None

    @property
    def missing(self) -> int | None:
        return None if self.expected is None else max(0, self.expected - self.stored)

    def __str__(self) -> str:
        if self.complete:
            return f"yes, all {self.expected:,} samples"
        if self.missing:
            return f"no, {self.missing:,} of {self.expected:,} samples are missing; the same extract stores them"
        if self.complete is False:
            return f"no, the last run was interrupted at {self.stopped_at:,} samples; the same extract goes on"
        return "not known, no run has ended by itself; the same extract stores what is missing, if anything is"


def completeness(store: Path, stored: int) -> Completeness:
    """Of a store with `stored` samples. Records that can't be read say nothing."""
    records = [record for file in sorted((store / "runs").glob("*.json")) if (record := _read(file))]
    finished = [total for total, interrupted in records if not interrupted]
    last_total, interrupted = records[-1] if records else (0, False)
    # The least: a sample that two replicas computed counts twice in their run's record.
    return Completeness(
        stored=stored, expected=min(finished, default=None), stopped_at=last_total if interrupted else None
    )


def _read(file: Path) -> tuple[int, bool] | None:
    """(samples stored at the end, whether the run was interrupted)."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return int(record["already_stored"]) + int(record["samples"]), bool(record["interrupted"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
