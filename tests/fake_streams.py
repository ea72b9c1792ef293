"""Streams and events that run as late as possible and in any order that the events allow.

Nothing runs when it is enqueued. One piece of work runs each time somebody asks an event, so a missing dependency shows
as wrong bytes instead of passing because everything happened to be done.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
from collections import deque
from collections.abc import Callable


class Mark:
    """One recording of an event: reached once everything enqueued before it on its stream has run."""

    def __init__(self) -> None:
        self.reached = False


class FakeEvent:
    def __init__(self, streams: FakeStreams) -> None:
        self._streams = streams
        self._mark: Mark | None = None

    def record(self, stream: FakeStream) -> None:
        self._mark = mark = Mark()
        stream.enqueue(lambda: setattr(mark, "reached", True))

    def query(self) -> bool:
        self._streams.askers.add(threading.current_thread())
        self._streams.advance()
        return self.reached()

    def reached(self) -> bool:
        return self._mark is None or self._mark.reached

    def latest(self) -> Mark | None:
        return self._mark


class FakeStream:
    """Work in order; an entry is (what it waits for, what it does)."""

    def __init__(self, lock: threading.RLock, deaf: bool = False) -> None:
        self._lock = lock
        self._deaf = deaf
        self.queue: deque[tuple[Mark | None, Callable[[], object]]] = deque()

    def enqueue(self, work: Callable[[], object], after: Mark | None = None) -> None:
        with self._lock:
            self.queue.append((after, work))

    def wait_event(self, event: FakeEvent) -> None:
        """Later work waits for the latest recording so far; a deaf stream does not (the negative control)."""
        if not self._deaf:
            self.enqueue(lambda: None, event.latest())

    def runnable(self) -> bool:
        return bool(self.queue) and (self.queue[0][0] is None or self.queue[0][0].reached)


class FakeStreams:
    """A device of two streams. order: which stream goes first where both could: "engine", "copies" or "random".

    hold() stops all progress until release(); `error` is raised by the next query.
    """

    def __init__(self, order: str, seed: int = 0, deaf: str = "") -> None:
        self._lock = threading.RLock()
        self._order = order
        self._random = random.Random(seed)
        self._held = False
        self.forward = FakeStream(self._lock, deaf == "engine")
        self.copies = FakeStream(self._lock, deaf == "copies")
        self.askers: set[threading.Thread] = set()
        self.error: Exception | None = None
        self.device = contextlib.nullcontext()

    def begin(self) -> None:
        self.begun_on = threading.current_thread().name

    def engine(self) -> FakeStream:
        return self.forward

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def gather(self, stream: FakeStream, work: Callable[[], object]) -> None:
        stream.enqueue(work)

    def clear(self, stream: FakeStream, at: int, nbytes: int) -> None:
        stream.enqueue(lambda: ctypes.memset(at, 0, nbytes))

    def copy_in(self, stream: FakeStream, to: int, source: int, nbytes: int) -> None:
        stream.enqueue(lambda: ctypes.memmove(to, source, nbytes))

    copy_out = copy_in

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False

    def advance(self) -> None:
        """Run one piece of work, if any can run."""
        with self._lock:
            if self.error:
                raise self.error
            ready = [] if self._held else [s for s in self._in_order() if s.runnable()]
            if ready:
                _, work = ready[0].queue.popleft()
                work()

    def _in_order(self) -> list[FakeStream]:
        both = [self.forward, self.copies]
        if self._order == "copies" or (self._order == "random" and self._random.random() < 0.5):
            both.reverse()
        return both
