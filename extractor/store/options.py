"""Sizes of the writer, and what it reports about itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extractor.store.lane import Lane

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Sizes in bytes. Memory: `buffer_bytes` plus `group_bytes` for each of `lanes`, whatever the samples' length."""

    tile_bytes: int = 4 * _MIB  # small enough to be still in the cache when it is copied and its checksum is taken
    group_bytes: int = 128 * _MIB
    turn_bytes: int = 32 * _MIB
    commit_seconds: float = 10.0
    buffer_bytes: int = 128 * _MIB
    lanes: int = 4
    shard_bytes: int = 256 << 30
    codec_threads: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterReport:
    """What a writer did. `sealed` samples are durable after `flush` and within `commit_seconds` by themselves;
    `stored_bytes` are the tiles' (compressed where the store is); `dead_bytes` belong to discarded samples;
    `stall_seconds` is how long `write_rows` waited for room."""

    sealed: int
    durable: int
    stored_bytes: int
    dead_bytes: int
    stall_seconds: float
    disk_seconds: float
    codec_seconds: float

    @classmethod
    def of(cls, lanes: Sequence[Lane], stall_seconds: float) -> WriterReport:
        times = [lane.times for lane in lanes]
        return cls(
            sealed=sum(t.sealed for t in times),
            durable=sum(t.durable for t in times),
            stored_bytes=sum(lane.shard.stored_bytes for lane in lanes),
            dead_bytes=sum(t.dead_bytes for t in times),
            stall_seconds=stall_seconds,
            disk_seconds=sum(t.committing for t in times),
            codec_seconds=sum(t.waiting_for_codec for t in times),
        )

    @property
    def limit(self) -> str:
        """What decided the speed: `source` (nobody waited here), `disk` or `codec`."""
        if self.stall_seconds < 0.05 * (self.disk_seconds + self.codec_seconds):
            return "source"
        return "codec" if self.codec_seconds > self.disk_seconds else "disk"
