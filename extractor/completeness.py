"""Whether a store holds all that it was made for, as far as its own records tell: those of its runs, or of the import
that made it. Neither the samples file nor the imported folder is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from extractor.import_record import ImportRecord

if TYPE_CHECKING:
    from extractor.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """`expected`: samples of the samples file or the imported folder, as the runs or the import recorded it; None where
    none did.  `stopped_at`: samples that were stored when the last run was interrupted; None where the last one was
    not.  `imported`: whether an import made the store.  `rejected`: files that it could not take."""

    stored: int
    expected: int | None
    stopped_at: int | None = None
    imported: bool = False
    rejected: int = 0

    @property
    def complete(self) -> bool | None:
        """None: not known. A run that was killed leaves no record."""
        if self.expected is not None:
            return self.stored >= self.expected
        return False if self.stopped_at is not None and self.stored <= self.stopped_at else None

    @property
    def missing(self) -> int | None:
        return None if self.expected is None else max(0, self.expected - self.stored)

    @property
    def remedy(self) -> str:
        """What to run once more."""
        return "the same import" if self.imported else "the same extract"

    def __str__(self) -> str:
        if self.complete:
            return f"yes, all {self.expected:,} samples"
        if self.missing:
            first = f"import-rejects.jsonl says what is wrong with {self.rejected:,}; " if self.rejected else ""
            return f"no, {self.missing:,} of {self.expected:,} samples are missing; {first}{self.remedy} stores them"
        if self.complete is False:
            return f"no, the last run was interrupted at {self.stopped_at:,} samples; the same extract goes on"
        why = "the import left no record" if self.imported else "no run has ended by itself"
        return f"not known, {why}; {self.remedy} stores what is missing, if anything is"


def completeness(store: Store) -> Completeness:
    """Records that can't be read say nothing."""
    if store.manifest.engine.startswith("import-"):
        return _of_import(ImportRecord.load(store.path), len(store))
    return _of_runs(store.path, len(store))


def _of_import(record: ImportRecord | None, stored: int) -> Completeness:
    if record is None:
        return Completeness(stored=stored, expected=None, imported=True)
    return Completeness(stored=stored, expected=record.files, imported=True, rejected=record.rejected or 0)


def _of_runs(store: Path, stored: int) -> Completeness:
    records = [record for file in sorted((store / "runs").glob("*.json")) if (record := _read(file))]
    wanted = [wanted for *_, wanted in records if wanted is not None]
    last_total, interrupted, _ = records[-1] if records else (0, False, None)
    # The least: in older records a sample that two replicas computed counts twice.
    return Completeness(
        stored=stored, expected=min(wanted, default=None), stopped_at=last_total if interrupted else None
    )


def _read(file: Path) -> tuple[int, bool, int | None] | None:
    """(samples stored at the end, whether the run was interrupted, samples of the samples file). Older records do not
    have the last; a run that ended by itself had stored as many."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        stored, interrupted = int(record["already_stored"]) + int(record["samples"]), bool(record["interrupted"])
        return stored, interrupted, int(record["wanted"]) if "wanted" in record else None if interrupted else stored
    except (OSError, ValueError, KeyError, TypeError):
        return None
