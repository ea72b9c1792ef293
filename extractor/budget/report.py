"""A finished plan: all rows, as one object that prints as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from extractor.budget.codec_ratio import CodecRatio
from extractor.budget.geometry import Geometry
from extractor.budget.rates import Rate
from extractor.budget.replicas import ReplicaPlan
from extractor.budget.room import RoomReport
from extractor.budget.rows import Bin, CapRow, ScenarioRow, SourceRow
from extractor.budget.tally import Reject
from extractor.budget.verdict import DOES_NOT_FIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a corpus costs. `sources` by tokens, most first; `caps` apply to what is chosen but for its cap;
    `scenarios` has exactly one chosen row; `room` is None where no --out is given,
    `replicas` for one engine."""

    geometry: Geometry
    rate: Rate | None
    codec_ratio: CodecRatio | None
    sources: tuple[SourceRow, ...]
    total: SourceRow
    caps: tuple[CapRow, ...]
    scenarios: tuple[ScenarioRow, ...]
    seed: int
    histogram: tuple[Bin, ...]
    room: RoomReport | None
    replicas: ReplicaPlan | None = None
    rejected_records: int
    rejects: tuple[Reject, ...]
    notes: tuple[str, ...]

    @property
    def chosen(self) -> ScenarioRow:
        return next(row for row in self.scenarios if row.chosen)

    @property
    def exit_code(self) -> int:
        """3 when the job does not fit, or records could not be read; else 0."""
        unfit = self.room is not None and self.room.verdict.verdict == DOES_NOT_FIT
        return 3 if unfit or self.rejected_records else 0

    def as_json(self) -> dict[str, Any]:
        """Exact integers for tokens, bytes and samples; other numbers carry their unit in the key or are shares."""
        document: dict[str, Any] = _plain(asdict(self))
        document["geometry"]["bytes_per_token"] = self.geometry.bytes_per_token
        document["geometry"]["formula"] = self.geometry.formula
        if self.rate:
            document["rate"]["spread"] = self.rate.spread
        return document


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
