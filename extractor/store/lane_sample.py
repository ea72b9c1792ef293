"""What a lane is given: tiles on their way, and the samples that they belong to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from extractor.record import TILE

Payload = np.ndarray | bytes


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """A tile on its way: `count` rows from `position` on; `payload` are their stored bytes, or will be; `release` is
    called once these are no longer needed."""

    position: int
    count: int
    raw_bytes: int
    payload: Payload | Future[Payload]
    release: Callable[[], None]


@dataclass(slots=True, eq=False)
class LaneSample:
    """A sample's tiles in this lane's shard, as TILE records, in the order of writing."""

    sample_id: str
    tiles: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)

    def table(self) -> np.ndarray:
        """TILE [n], by position."""
        tiles = np.array(self.tiles, TILE)
        return tiles[np.argsort(tiles["position"], kind="stable")]

    @property
    def stored_bytes(self) -> int:
        return sum(tile[2] for tile in self.tiles)
