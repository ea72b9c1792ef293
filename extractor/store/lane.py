"""A shard's writer thread: takes tiles and seals in order, commits them in groups by bytes and by time."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from extractor.record import Seal, checksum
from extractor.store.lane_sample import LaneSample, Payload, StoredRows
from extractor.store.shard import Shard


@dataclass(slots=True)
class LaneTimes:
    """Seconds the thread spent on each thing, and what it did."""

    putting: float = 0.0
    committing: float = 0.0
    waiting_for_codec: float = 0.0
    sealed: int = 0
    durable: int = 0
    dead_bytes: int = 0


class Lane:
    """All calls return at once; what fails in the thread is kept in `failure` and everything after it is dropped."""

    def __init__(self, shard: Shard, group_bytes: int, commit_seconds: float) -> None:
        self.shard = shard
        self.times = LaneTimes()
        self.failure: BaseException | None = None
        self.assigned_bytes = 0
        self.given_bytes = 0  # since the last end_group
        self.samples = 0
        self._group_bytes = group_bytes
        self._commit_seconds = commit_seconds
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._handed_in = 0  # counted by the caller's thread
        self._done = 0  # counted by this lane's thread
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"store-{shard.path.name}", daemon=True)
        self._thread.start()

    def write(self, sample: LaneSample, rows: StoredRows) -> None:
        """Store a tile."""
        self.assigned_bytes += rows.raw_bytes
        self.given_bytes += rows.raw_bytes
        self._hand_in(lambda: self._write(sample, rows))

    def seal(self, sample: LaneSample, seal: Seal) -> None:
        """Add the seal, completed by the tiles written for `sample`."""
        self._hand_in(lambda: self._seal(sample, seal))

    def discard(self, sample: LaneSample) -> None:
        self._hand_in(lambda: self._discard(sample))

    def end_group(self) -> None:
        """Commit what was handed in, now, while other lanes are filled."""
        self.given_bytes = 0
        self._hand_in(self._commit_early)

    @property
    def is_busy(self) -> bool:
        """Whether something that was handed in is not done yet."""
        return self._done < self._handed_in

    def flush(self) -> threading.Event:
        """Set when all that was handed in before is durable, or the lane has failed."""
        done = threading.Event()
        self._hand_in(self._commit_durably)
        self._hand_in(done.set)
        return done

    def close(self) -> None:
        """Finish what was handed in, end the thread, close the shard."""
        self._hand_in(self._finish)
        self._hand_in(None)
        self._thread.join()
        try:
            self.shard.close()
        except Exception as error:  # noqa: BLE001 - left here, so that the other lanes are closed too
            self.failure = self.failure or error

    def _hand_in(self, step: Callable[[], None] | None) -> None:
        self._handed_in += 1
        self._queue.put(step)

    def _run(self) -> None:
        while True:
            timeout = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            try:
                step = self._queue.get(timeout=timeout)
            except queue.Empty:
                self._attempt(self._commit_durably)
                continue
            if step is None:
                return
            self._attempt(step)
            self._done += 1

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - handed to the caller at its next call
            self.failure = self.failure or error
            self._deadline = None

    def _write(self, sample: LaneSample, rows: StoredRows) -> None:
        try:
            if self.failure is None:
                self._put(sample, rows, self._encoded(rows.payload))
        finally:
            rows.release()

    def _put(self, sample: LaneSample, rows: StoredRows, stored: Payload) -> None:
        if self.shard.group_bytes and self.shard.group_bytes + len(stored) > self._group_bytes:
            self._commit()
        start = time.perf_counter()
        key, offset = self.shard.put_tile(stored)
        sample.tiles.append((key, offset, len(stored), checksum(stored), rows.position, rows.count))
        self.times.putting += time.perf_counter() - start
        self._expect_commit()

    def _encoded(self, payload: Payload | Future[Payload]) -> Payload:
        if not isinstance(payload, Future):
            return payload
        start = time.perf_counter()
        stored = payload.result()
        self.times.waiting_for_codec += time.perf_counter() - start
        return stored

    def _seal(self, sample: LaneSample, seal: Seal) -> None:
        if self.failure is not None:
            return
        self.shard.put_seal(dataclasses.replace(seal, tiles=sample.table()))
        self.times.sealed += 1
        if self.shard.group_bytes > self._group_bytes:
            self._commit()
        self._expect_commit()

    def _discard(self, sample: LaneSample) -> None:
        self.times.dead_bytes += sample.stored_bytes

    def _expect_commit(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._commit_seconds

    def _commit(self) -> None:
        start = time.perf_counter()
        self._deadline = None
        self.shard.commit()
        self.times.committing += time.perf_counter() - start

    def _commit_early(self) -> None:
        if self.failure is None:
            self._commit()

    def _commit_durably(self) -> None:
        if self.failure is not None:
            return
        self._commit()
        self.shard.sync()
        self.times.durable = self.times.sealed

    def _finish(self) -> None:
        self._commit_durably()
        if self.failure is None:
            self.shard.summarise()
