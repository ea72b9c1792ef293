"""What the chosen job needs on the filesystem of --out, and what lies there already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from extractor.budget.verdict import Verdict
from extractor.disk import DiskSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecRatio:
    """Stored bytes / raw bytes of tiles, measured on the store `origin`."""

    ratio: float
    origin: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomReport:
    """`stored_tokens`: what a store at `out` already holds of the job, so that it need not be written again."""

    out: Path
    space: DiskSpace
    stored_tokens: int
    verdict: Verdict
