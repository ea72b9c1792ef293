"""Rows of one sample -> tiles: the caller's own bytes where enough rows come at once, else gathered in buffers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


class BufferPool:
    """At most `count` buffers of `size` bytes, made when first needed. `take` waits for one to come back."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.stall_seconds = 0.0
        self._size = size
        self._made = 0
        self._free: list[np.ndarray] = []
        self._returned = threading.Condition()

    def take(self) -> np.ndarray:
        """A uint8 [size] buffer."""
        start = time.perf_counter()
        with self._returned:
            while not self._free:
                if self._made < self.count:
                    self._made += 1
                    return np.empty(self._size, np.uint8)
                self._returned.wait()
                self.stall_seconds += time.perf_counter() - start
                start = time.perf_counter()
            return self._free.pop()

    def give(self, buffer: np.ndarray) -> None:
        with self._returned:
            self._free.append(buffer)
            self._returned.notify()


class Loans:
    """Tiles whose bytes stay the caller's. `wait` returns when all have been given back."""

    def __init__(self) -> None:
        self._count = 0
        self._returned = threading.Semaphore(0)

    def lend(self) -> Callable[[], None]:
        """One more; returns what gives it back, from any thread."""
        self._count += 1
        return self._returned.release

    def wait(self) -> float:
        """Seconds waited."""
        start = time.perf_counter()
        for _ in range(self._count):
            self._returned.acquire()
        self._count = 0
        return time.perf_counter() - start


@dataclass(slots=True, eq=False)
class OpenTile:
    """Consecutive rows being gathered: `rows` rows of `row_bytes` from `position` on, in `buffer`."""

    buffer: np.ndarray
    row_bytes: int
    position: int
    rows: int = 0

    def append(self, data: np.ndarray) -> int:
        """Copy as many of data [r, row_bytes] as fit; returns how many."""
        taken = min(len(data), len(self.buffer) // self.row_bytes - self.rows)
        target = self.buffer[self.rows * self.row_bytes : (self.rows + taken) * self.row_bytes]
        np.copyto(target.reshape(taken, self.row_bytes), data[:taken])
        self.rows += taken
        return taken

    @property
    def end(self) -> int:
        return self.position + self.rows

    @property
    def is_full(self) -> bool:
        return (self.rows + 1) * self.row_bytes > len(self.buffer)

    @property
    def filled(self) -> np.ndarray:
        return self.buffer[: self.rows * self.row_bytes]
