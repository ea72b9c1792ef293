"""The two streams of a GPU's ring, and what is enqueued on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from typing import Any, Protocol

import torch

from extractor.errors import EngineError
from extractor.pinned import CudaDriver


class Streams(Protocol):
    """What a GPU's ring needs of torch.cuda and of the driver. Streams and events are torch's, or behave alike.

    All is enqueued, on the stream given first; addresses and sizes are in bytes.
    """

    copies: Any
    device: Any  # a context manager, in which the calls below are made

    def begin(self) -> None: ...
    def engine(self) -> Any: ...
    def event(self) -> Any: ...
    def gather(self, stream: Any, work: Callable[[], object]) -> None: ...
    def clear(self, stream: Any, at: int, nbytes: int) -> None: ...
    def copy_in(self, stream: Any, to: int, source: int, nbytes: int) -> None: ...
    def copy_out(self, stream: Any, to: int, source: int, nbytes: int) -> None: ...


class CudaStreams:
    """The engine's current stream, on which the gather is ordered with the forward, and one more for the copies.

    Copies go to the driver itself: torch's need stream contexts and views, which cost the engine's thread more than the
    copies do, and offer the interpreter at each call to any other thread that wants it.
    """

    def __init__(self, device: torch.device, driver: CudaDriver, near: Set[int]) -> None:
        """`near`: the processors on the device's NUMA node, for the thread that reads what arrives."""
        self._device = device
        self._driver = driver
        self._near = near
        self.device = torch.cuda.device(device)
        self.copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        torch.cuda.set_device(self._device)  # a thread's own is device 0: each query would keep a context there
        if self._near:
            os.sched_setaffinity(0, self._near)  # of this thread, and of those that it starts

    def engine(self) -> torch.cuda.Stream:
        if torch.cuda.is_current_stream_capturing():
            raise EngineError(
                "a capture step ran while a CUDA graph was being recorded, and would become part of the graph; "
                "call step() after the forward pass has returned"
            )
        return torch.cuda.current_stream(self._device)

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def gather(self, stream: torch.cuda.Stream, work: Callable[[], object]) -> None:
        work()  # on the current stream, which is the engine's

    def clear(self, stream: torch.cuda.Stream, at: int, nbytes: int) -> None:
        self._driver.clear(stream.cuda_stream, at, nbytes)

    def copy_in(self, stream: torch.cuda.Stream, to: int, source: int, nbytes: int) -> None:
        self._driver.copy_in(stream.cuda_stream, to, source, nbytes)

    def copy_out(self, stream: torch.cuda.Stream, to: int, source: int, nbytes: int) -> None:
        self._driver.copy_out(stream.cuda_stream, to, source, nbytes)
