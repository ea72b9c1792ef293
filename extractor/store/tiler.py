"""Rows of open samples -> tiles on their way to the samples' lanes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from extractor.store.codec import codec
from extractor.store.lane import Lane
from extractor.store.lane_sample import LaneSample, StoredRows
from extractor.store.open_sample import OpenSample
from extractor.store.sample import StoredSample
from extractor.store.tiles import BufferPool, Loans, OpenTile


class Tiler:
    """Where at least half a tile comes at once, the lane copies the caller's own bytes into LMDB; the rest is gathered
    in buffers first. Not thread-safe."""

    def __init__(self, codec_name: str, codec_threads: int, tile_rows: int, row_bytes: int, buffers: int) -> None:
        self._codec = codec(codec_name)
        self._workers = ThreadPoolExecutor(codec_threads, "store-codec") if codec_name != "none" else None
        self._tile_rows = tile_rows
        self._row_bytes = row_bytes
        self._pool = BufferPool(buffers, tile_rows * row_bytes)
        self._filling: dict[str, OpenSample] = {}
        self._loan_seconds = 0.0

    @property
    def stall_seconds(self) -> float:
        """How long `add` waited for disk or codec."""
        return self._pool.stall_seconds + self._loan_seconds

    def add(self, sample: OpenSample, position: int, data: np.ndarray) -> None:
        """Take data uint8 [r, row_bytes] as rows from `position` on; it is no longer needed when this returns."""
        loans, done = Loans(), 0
        try:
            while done < len(data):
                done += self._add_some(sample, position + done, data[done:], loans)
        finally:
            self._await_return(loans, sample.lane)

    def finish(self, sample: OpenSample) -> None:
        """Hand over the tile that is being filled."""
        self._filling.pop(sample.sample_id, None)
        if sample.tile is not None:
            tile, sample.tile = sample.tile, None
            self._send(sample, tile.position, tile.filled, partial(self._pool.give, tile.buffer))

    def drop(self, sample: OpenSample) -> None:
        """Forget the tile that is being filled."""
        self._filling.pop(sample.sample_id, None)
        if sample.tile is not None:
            self._pool.give(sample.tile.buffer)
            sample.tile = None

    def copy(self, sample: StoredSample, lane: Lane) -> LaneSample:
        """Send the tiles of another shard's sample to `lane` as they are stored."""
        target = LaneSample(sample.sample_id)
        for tile, stored in sample.stored_tiles():
            turn = self._pool.take()  # bounds what is on its way; the bytes have memory of their own
            rows = int(tile["rows"])
            release = partial(self._pool.give, turn)
            lane.write(target, StoredRows(int(tile["position"]), rows, rows * self._row_bytes, stored, release))
        return target

    def close(self) -> None:
        if self._workers is not None:
            self._workers.shutdown()

    def _add_some(self, sample: OpenSample, position: int, data: np.ndarray, loans: Loans) -> int:
        """Make the first rows of data a tile or a part of one; returns how many."""
        if sample.tile is not None and sample.tile.end != position:
            self.finish(sample)
        if sample.tile is None and 2 * len(data) >= self._tile_rows:
            lent = data[: self._tile_rows]
            self._send(sample, position, lent.reshape(-1), loans.lend())
            return len(lent)
        tile = sample.tile or self._open_tile(sample, position)
        taken = tile.append(data)
        if tile.is_full:
            self.finish(sample)
        return taken

    def _open_tile(self, sample: OpenSample, position: int) -> OpenTile:
        self._leave_buffers_to_the_lanes()
        sample.tile = OpenTile(self._pool.take(), self._row_bytes, position)
        self._filling[sample.sample_id] = sample
        return sample.tile

    def _leave_buffers_to_the_lanes(self) -> None:
        """Hand over the fullest open tile, early, where open tiles hold half of all buffers: a wait for one more could
        last for ever."""
        if len(self._filling) >= self._pool.count // 2:
            self.finish(max(self._filling.values(), key=lambda sample: sample.tile.rows if sample.tile else 0))

    def _send(self, sample: OpenSample, position: int, raw: np.ndarray, release: Callable[[], None]) -> None:
        """`release` is called when the lane no longer needs raw uint8 [n]."""
        payload = raw if self._workers is None else self._workers.submit(self._codec.encode, raw)
        rows = raw.size // self._row_bytes
        sample.lane.write(sample.stored, StoredRows(position, rows, raw.size, payload, release))

    def _await_return(self, loans: Loans, lane: Lane) -> None:
        """Until the lane has copied them. What that takes beyond the copies is a wait for disk or codec."""
        copying = lane.times.putting
        waited = loans.wait()
        self._loan_seconds += max(0.0, waited - (lane.times.putting - copying))
