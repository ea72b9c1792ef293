"""A run of benchmarks: what was measured, where and with what. One JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from extractor.benchmarks.table import Table
from extractor.errors import InputError

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One file of `bench/`. `not_measured` and `failed` hold (what, reason) pairs; `load` the 1-minute load average
    before and after; `peak_mib` the largest resident set of its process."""

    name: str
    question: str
    tables: tuple[Table, ...]
    not_measured: tuple[tuple[str, str], ...]
    failed: tuple[tuple[str, str], ...]
    seconds: float
    peak_mib: float
    load: tuple[float, float]

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Question:
        pairs = {name: tuple(tuple(pair) for pair in raw[name]) for name in ("not_measured", "failed")}
        tables = tuple(Table.from_json(table) for table in raw["tables"])
        return cls(**{**raw, **pairs, "tables": tables, "load": tuple(raw["load"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """`toy` results were measured at sizes that only show that the benchmarks run."""

    version: int = VERSION
    started: str
    commit: str
    toy: bool
    machine: dict[str, str]
    versions: dict[str, str]
    questions: tuple[Question, ...]

    @property
    def name(self) -> str:
        """`20261130T0510-6b05e93`: stem of the files of this run."""
        return f"{self.started[:16].replace('-', '').replace(':', '')}-{self.commit.split()[0]}"

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def load(cls, file: Path) -> Results:
        """Raises InputError when the file is missing, not JSON, or not a results file of this version."""
        try:
            raw = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{file} can't be read as JSON: {error}; pass a file that `extractor bench` wrote"
            ) from error
        version = raw.get("version") if isinstance(raw, dict) else None
        if version != VERSION:
            raise InputError(
                f"{file} has results version {version!r}, this release reads {VERSION}; pass a file that "
                "`extractor bench` of this release wrote"
            )
        try:
            return cls(**{**raw, "questions": tuple(Question.from_json(q) for q in raw["questions"])})
        except (KeyError, TypeError) as error:
            raise InputError(f"{file} is not a whole results file ({error}); run `extractor bench` again") from error
