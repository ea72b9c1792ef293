"""A fixed number of slots that go round between the engine's thread and the writer thread.

    free -> acquire (engine's thread, waits when none is free) -> publish -> ready -> write (writer thread) -> free

The ring knows neither memory nor devices: a slot is a number, `ready` says whether its bytes have arrived, and `write`
consumes them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, NoReturn, TypeVar

from extractor.errors import EngineError

# Polling, not a blocking wait: a copy behind a hung collective never completes, and the thread must still stop. Slots
# are published before the forward pass has run, so there is much to poll for, and each query takes the driver's lock;
# half a millisecond is half of what the copy of a slot (44 MB over PCIe Gen5) takes.
POLL_SECONDS = 5e-4

Content = TypeVar("Content")


class Ring(Generic[Content]):
    """Slots 0..num_slots-1 and the one thread that writes them in the order in which they were published.

    begin()              -> called first on that thread
    ready(slot)          -> True once the slot's bytes are in host memory; may raise the device's error
    write(slot, content) -> consumes the slot; what it raises stops the ring and comes out of `acquire` and `drain`
    """

    def __init__(
        self,
        num_slots: int,
        ready: Callable[[int], bool],
        write: Callable[[int, Content], None],
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        self._num_slots = num_slots
        self._begin = begin
        self._ready = ready
        self._write = write
        self._free = deque(range(num_slots))
        self._published: deque[tuple[int, Content]] = deque()
        self._unwritten = 0
        self._error: BaseException | None = None
        self._origin: TracebackType | None = None
        self._closed = False
        self._changed = threading.Condition()
        self.stalled_seconds = 0.0
        self.copy_wait_seconds = 0.0
        self.write_seconds = 0.0
        self.max_slots_used = 0
        self._thread = threading.Thread(target=self._run, name="capture-writer", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the writer's error, or EngineError after `close`."""
        if self._error is not None:
            raise self._error.with_traceback(self._origin)  # else each raise would add to the last one's
        if self._closed:
            raise EngineError("the capture ring is closed: a step or drain came after close(); open a new Capture")

    def acquire(self) -> int:
        """A free slot; waits for one and adds the wait to `stalled_seconds`. Raises the writer's error."""
        with self._changed:
            self.check()
            if not self._free:
                self._stall()
            slot = self._free.popleft()
            self.max_slots_used = max(self.max_slots_used, self._num_slots - len(self._free))
            return slot

    def publish(self, slot: int, content: Content) -> None:
        """Hand an acquired slot to the writer, behind all slots published before it."""
        with self._changed:
            self._published.append((slot, content))
            self._unwritten += 1
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until every published slot has been written. Raises the writer's error."""
        with self._changed:
            self._wait_until(lambda: not self._unwritten)

    def close(self, timeout_seconds: float) -> bool:
        """Stop the thread; published slots that it has not begun are dropped. False if it is still inside `write`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            return False
        self._begin = self._ready = self._write = (
            _at_rest  # no longer methods of the owner, whose memory would wait for a collection
        )
        return True

    def _stall(self) -> None:
        started = time.perf_counter()
        try:
            self._wait_until(lambda: bool(self._free))
        finally:
            self.stalled_seconds += time.perf_counter() - started

    def _wait_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self.check()
            self._changed.wait()

    def _run(self) -> None:
        try:
            self._begin()
            while (published := self._next()) is not None:
                slot, content = published
                if not self._wait_ready(slot):
                    return
                started = time.perf_counter()
                self._write(slot, content)
                self.write_seconds += time.perf_counter() - started
                self._release(slot)
        except BaseException as error:  # whatever it is, the engine's thread must not wait for ever
            with self._changed:
                self._error, self._origin = error, error.__traceback__
                self._changed.notify_all()

    def _next(self) -> tuple[int, Content] | None:
        with self._changed:
            while not self._published and not self._closed:
                self._changed.wait()
            return None if self._closed else self._published.popleft()

    def _wait_ready(self, slot: int) -> bool:
        started = time.perf_counter()
        while not self._ready(slot):
            if self._closed:
                return False
            time.sleep(POLL_SECONDS)
        self.copy_wait_seconds += time.perf_counter() - started
        return True

    def _release(self, slot: int) -> None:
        with self._changed:
            self._free.append(slot)
            self._unwritten -= 1
            self._changed.notify_all()


def _at_rest(*_: object) -> NoReturn:
    raise EngineError("the capture ring is closed; its thread has ended")
