"""Memory for batches that is used again once the last tensor over it is gone."""

from __future__ import annotations

import threading
import weakref

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
        self._idle: list[Bytes] = []
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
        weakref.finalize(loan, self._give, buffer).atexit = False
        return torch.from_numpy(loan).view(dtype).view(shape)

    def _take(self, size: int) -> Bytes:
        with self._guard:
            fitting = [n for n, buffer in enumerate(self._idle) if size <= buffer.size <= 2 * size]
            if fitting:
                return self._idle.pop(min(fitting, key=lambda n: self._idle[n].size))
        return np.empty(size, np.uint8)

    def _give(self, buffer: Bytes) -> None:
        with self._guard:
            self._idle.append(buffer)
            if len(self._idle) > self._keep:
                self._idle.pop(0)

    def __reduce__(self) -> tuple[type[BufferPool], tuple[int]]:
        return BufferPool, (self._keep,)
