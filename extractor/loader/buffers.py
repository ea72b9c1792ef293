"""Memory for batches that is used again once the last tensor over it is gone."""

from __future__ import annotations

import threading
import weakref
from collections import deque

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]


class BufferPool:
    """Fresh memory costs a page fault per 4 KiB at its first touch, more than the copy into it; hence the reuse. A
    tensor owns its buffer for as long as it, or any view of it, lives."""

    def __init__(self, keep: int = 8) -> None:
        """`keep`: most idle buffers."""
        self._keep = keep
        self._idle: deque[Bytes] = deque(maxlen=keep)
        self._returned: deque[Bytes] = deque(maxlen=keep)
        self._guard = threading.Lock()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, *, pin: bool = False) -> torch.Tensor:
        """Uninitialised. Pinned memory comes from torch, whose own pool knows which copies to a device still run."""
        if pin:
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if size == 0:
            return torch.empty(shape, dtype=dtype)
        buffer = self._take(size)
        loan = buffer[:size]
        weakref.finalize(loan, self._returned.append, buffer).atexit = False
        return torch.from_numpy(loan).view(dtype).view(shape)

    def _take(self, size: int) -> Bytes:
        """Buffers come back through `_returned`, without the guard: the garbage collector may run a finalizer right
        here, in the thread that holds it."""
        with self._guard:
            while self._returned:
                self._idle.append(self._returned.popleft())
            fitting = [n for n, buffer in enumerate(self._idle) if size <= buffer.size <= 2 * size]
            if fitting:
                best = min(fitting, key=lambda n: self._idle[n].size)
                buffer = self._idle[best]
                del self._idle[best]
                return buffer
        return np.empty(size, np.uint8)

    def __reduce__(self) -> tuple[type[BufferPool], tuple[int]]:
        return BufferPool, (self._keep,)
