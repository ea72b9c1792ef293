"""The writer of one rank: rows in any chunks, of many samples at once -> sealed samples in append-only shards."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from extractor.errors import StoreError
from extractor.manifest import Manifest
from extractor.record import TILE, Seal
from extractor.store.checks import check_coverage, check_seal, row_bytes, rows_per_tile
from extractor.store.heap import keep_large_blocks
from extractor.store.lane import Lane
from extractor.store.lane_sample import LaneSample
from extractor.store.lane_set import LaneSet
from extractor.store.lock import WriterLock
from extractor.store.open_sample import OpenSample
from extractor.store.options import WriterOptions, WriterReport
from extractor.store.sample import StoredSample
from extractor.store.shard import Shard
from extractor.store.tiler import Tiler


class ShardWriter:
    """Not thread-safe: one thread calls it. What a background thread fails with is raised at the next call."""

    def __init__(
        self,
        store_path: Path | str,
        *,
        run_id: str,
        writer: int,
        expected_bytes: int | None = None,
        options: WriterOptions | None = None,
    ) -> None:
        """`expected_bytes` sizes the map (it grows when wrong). Raises StoreError when `writer` of `run_id` is in use
        by a live process, naming its id."""
        self._path = Path(store_path)
        self._options = options or WriterOptions()
        self._manifest = Manifest.load(self._path)
        self._row_bytes = self._manifest.row_bytes
        tile_rows = rows_per_tile(self._options.tile_bytes, self._row_bytes)
        buffers = max(4, self._options.buffer_bytes // self._options.tile_bytes)
        self._tiler = Tiler(self._manifest.codec, self._options.codec_threads, tile_rows, self._row_bytes, buffers)
        self._lock = WriterLock(self._path, run_id, writer)
        keep_large_blocks()
        owner: dict[str, str | int] = {"run_id": run_id, "writer": writer}
        map_bytes = 2 * min(expected_bytes or self._options.shard_bytes, self._options.shard_bytes)
        self._lanes = LaneSet(
            partial(_new_lane, self._path, self._manifest, owner, max(map_bytes, 1 << 20), self._options),
            self._options.lanes,
            self._options.shard_bytes,
            self._options.turn_bytes,
        )
        self._open: dict[str, OpenSample] = {}
        self._closed = False

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._shut()

    @property
    def report(self) -> WriterReport:
        """Counts and times so far."""
        return WriterReport.of(self._lanes.lanes, self._tiler.stall_seconds)

    def write_rows(self, sample_id: str, position: int, rows: np.ndarray) -> None:
        """Keep `rows` [r, L, H] (the store's dtype, or uint16 bits) as rows position .. position + r - 1 of the sample.

        The rows are no longer needed when this returns. Raises StoreError for another shape or dtype, and DiskFullError
        or StoreError for what the disk reported since the last call.
        """
        self._check_usable()
        data = row_bytes(rows, self._manifest, sample_id)
        if len(data) == 0:
            return
        sample = self._open.get(sample_id) or self._start(sample_id)
        sample.cover(position, position + len(data))
        self._tiler.add(sample, position, data)

    def discard(self, sample_id: str) -> None:
        """Forget the sample's rows so far; it starts again from row 0. Unknown samples are no error."""
        sample = self._open.pop(sample_id, None)
        if sample is None:
            return
        self._tiler.drop(sample)
        sample.lane.discard(sample.stored)
        self._lanes.finished(sample.lane)

    def seal(self, sample_id: str, *, token_ids: np.ndarray, loss_mask: np.ndarray, stats: np.ndarray) -> None:
        """Make the sample exist. token_ids int32 [T]; loss_mask uint8 [T]; stats STATS [L].

        Raises StoreError naming the sample and the rows unless each of its T rows was written exactly once; the sample
        then stays open, so that it can be discarded.
        """
        self._check_usable()
        sample = self._open.get(sample_id)
        check_coverage(sample_id, sample.spans if sample else [], len(token_ids))
        check_seal(sample_id, token_ids, loss_mask, stats, self._manifest)
        assert sample is not None
        self._tiler.finish(sample)
        sample.lane.seal(
            sample.stored,
            Seal(
                sample_id=sample_id,
                row_bytes=self._row_bytes,
                token_ids=np.array(token_ids, np.int32),
                loss_mask=np.array(loss_mask, np.uint8),
                stats=stats.copy(),
                tiles=np.empty(0, TILE),
            ),
        )
        del self._open[sample_id]
        self._lanes.finished(sample.lane)

    def copy(self, sample: StoredSample) -> None:
        """Store and seal a sample of another shard of the same store as it is, tile by tile."""
        self._check_usable()
        lane = self._lanes.assign()
        target = self._tiler.copy(sample, lane)
        lane.seal(target, sample.seal)
        self._lanes.finished(lane)

    def flush(self) -> None:
        """Return once everything sealed so far survives a power cut."""
        self._check_usable()
        self._lanes.flush()
        self._lanes.raise_failure()

    def close(self) -> None:
        """Make everything sealed durable and release the shards; samples without a seal are given up."""
        if not self._closed:
            self._shut()
            self._lanes.raise_failure()

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreError(f"the writer of {self._path} is closed; open a new one")
        self._lanes.raise_failure()

    def _start(self, sample_id: str) -> OpenSample:
        sample = OpenSample(sample_id, self._lanes.assign(), LaneSample(sample_id))
        self._open[sample_id] = sample
        return sample

    def _shut(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._open.clear()
        try:
            self._lanes.close()
            self._tiler.close()
        finally:
            self._lock.release()


def _new_lane(
    path: Path, manifest: Manifest, owner: dict[str, str | int], map_bytes: int, options: WriterOptions
) -> Lane:
    shard = Shard.create(path, manifest, owner, map_bytes, options.group_bytes)
    return Lane(shard, options.group_bytes, options.commit_seconds)
