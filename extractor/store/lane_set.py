"""The lanes of one writer, filled in turn: while one waits for the disk in a commit, another takes the next samples. A
lane whose shard has reached its size limit gets no new samples and closes after its last."""

from __future__ import annotations

from collections.abc import Callable

from extractor.errors import StoreError
from extractor.store.lane import Lane


class LaneSet:
    """Lanes are made when all that are there are busy, so a run that the disk follows easily writes few shards."""

    def __init__(self, make: Callable[[], Lane], count: int, shard_bytes: int, turn_bytes: int) -> None:
        """`turn_bytes`: how much a lane gets before it commits and the next one has its turn."""
        self._make = make
        self._count = count
        self._shard_bytes = shard_bytes
        self._turn_bytes = turn_bytes
        self._active: list[Lane] = []  # the first one has its turn, the last one had it before
        self._draining: list[Lane] = []
        self._closed: list[Lane] = []

    @property
    def lanes(self) -> list[Lane]:
        return [*self._active, *self._draining, *self._closed]

    def assign(self) -> Lane:
        """The lane for a new sample."""
        self._retire_full()
        if self._active and self._active[0].given_bytes >= self._turn_bytes:
            self._pass_the_turn()
        if not self._active:
            self._active.append(self._make())
        self._active[0].samples += 1
        return self._active[0]

    def _pass_the_turn(self) -> None:
        """To a lane that has nothing to do, else to a new one, else to the one that got its work first."""
        self._active[0].end_group()
        waiting = [*self._active[1:], self._active[0]]
        lane = next((lane for lane in waiting if not lane.is_busy), None)
        if lane is None:
            lane = self._make() if len(waiting) < self._count else waiting[0]
        self._active = [lane, *(other for other in waiting if other is not lane)]

    def finished(self, lane: Lane) -> None:
        """One sample of `lane` was sealed or discarded."""
        lane.samples -= 1
        if lane in self._draining and lane.samples == 0:
            self._draining.remove(lane)
            self._closed.append(lane)
            lane.close()

    def flush(self) -> None:
        for done in [lane.flush() for lane in (*self._active, *self._draining)]:
            done.wait()

    def close(self) -> None:
        """Close all lanes, also when one of them fails at it; failures are left in the lanes."""
        running = [*self._active, *self._draining]
        self._active, self._draining = [], []
        self._closed += running
        for lane in running:
            lane.close()

    def raise_failure(self) -> None:
        """Raise what a lane failed with, as the store's error that it is or wrapped in one."""
        for lane in self.lanes:
            if isinstance(lane.failure, StoreError):
                raise lane.failure
            if lane.failure is not None:
                raise StoreError(
                    f"the writer of {lane.shard.path} stopped: {lane.failure!r}; what it sealed before is safe; run "
                    "the same command again"
                ) from lane.failure

    def _retire_full(self) -> None:
        for lane in [lane for lane in self._active if lane.assigned_bytes >= self._shard_bytes]:
            self._active.remove(lane)
            self._draining.append(lane)
            lane.samples += 1
            self.finished(lane)
