"""A sample while it is being written."""

from __future__ import annotations

from dataclasses import dataclass, field

from extractor.store.lane import Lane
from extractor.store.lane_sample import LaneSample
from extractor.store.tiles import OpenTile


@dataclass(slots=True, eq=False)
class OpenSample:
    """The spans (start, stop) of its rows so far, where they go, and the tile being filled."""

    sample_id: str
    lane: Lane
    stored: LaneSample
    spans: list[tuple[int, int]] = field(default_factory=list)
    tile: OpenTile | None = None

    def cover(self, start: int, stop: int) -> None:
        """Note that rows start .. stop - 1 were written; a continuation makes no new span."""
        if self.spans and self.spans[-1][1] == start:
            start = self.spans.pop()[0]
        self.spans.append((start, stop))
