"""Work on a GPU that is prepared once and timed by events, or by the clock where the host is part of it."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

MATRIX = 8192


@dataclass(frozen=True, slots=True)
class Work:
    """One thing to time: `run` enqueues it on the current stream, moving `nbytes` in `parts` equal parts.

    by_clock: `run` returns when all is done, and is timed by the wall clock instead of the device's events
    """

    nbytes: int
    run: Callable[[], object]
    parts: int = 1
    by_clock: bool = False

    def seconds(self, repeats: int = 7) -> float:
        """Median of one call, after one that is not counted."""
        self.run()
        one = elapsed_by_clock if self.by_clock else elapsed_on_device
        return statistics.median(one(self.run) for _ in range(repeats))


def elapsed_on_device(work: Callable[[], object]) -> float:
    """Seconds between two events on the current stream around `work`."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def elapsed_by_clock(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def recorded(calls: Sequence[Callable[[], object]]) -> Callable[[], None]:
    """All calls as one CUDA graph, after a first run: what is timed is the device, not Python's launches."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)  # which may still be filling the tensors that the calls read
    with torch.cuda.stream(side):
        for call in calls:
            call()
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


@contextlib.contextmanager
def running_product() -> Iterator[None]:
    """Another stream multiplies 8192 x 8192 matrices without a pause."""
    stop, stream = threading.Event(), torch.cuda.Stream()
    a, b, c = (torch.randn(MATRIX, MATRIX, device="cuda").bfloat16() for _ in range(3))
    torch.cuda.synchronize()
    thread = threading.Thread(target=_multiply, args=(stop, stream, a, b, c), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _multiply(
    stop: threading.Event, stream: torch.cuda.Stream, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> None:
    with torch.cuda.stream(stream):
        while not stop.is_set():
            for _ in range(8):
                torch.mm(a, b, out=c)
            stream.synchronize()
