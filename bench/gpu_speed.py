"""What a GPU is measured for: ceilings, the gather beside them, the way to the host, and what a model step pays.

Work is prepared first (buffers, CUDA graphs) and then timed by events, so that it can be timed again while another
stream multiplies matrices. Sources and outputs rotate over more memory than the L2 cache holds.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from extractor.gather_native import NativeGather
from extractor.native import NativeLibrary

LAYERS = 3
BEYOND_L2_BYTES = 256 << 20  # an H200 has 50 MB, a B200 126 MB
MATRIX = 8192


@dataclass(frozen=True, slots=True)
class Work:
    """One thing to time: `run` enqueues it on the current stream, moving `nbytes` in `parts` equal parts."""

    name: str
    nbytes: int
    run: Callable[[], object]
    parts: int = 1


def seconds(work: Callable[[], object], repeats: int = 7) -> float:
    """Median time on the device of one call."""
    work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def recorded(calls: list[Callable[[], object]]) -> Callable[[], None]:
    """All calls as one CUDA graph: what is timed is the device, not Python's launches."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


def device_copy() -> Work:
    """The ceiling for everything that stays on the device; reads and writes are both counted."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    copy = torch.empty_like(source)
    return Work("device copy, 1 GiB", 2 * source.nbytes, lambda: copy.copy_(source))


def host_copy(nbytes: int) -> Work:
    """The ceiling for the way to the host: one asynchronous copy into pinned memory."""
    source = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    return Work(f"copy to pinned memory, {size(nbytes)}", nbytes, lambda: pinned.copy_(source, non_blocking=True))


def size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


@dataclass(frozen=True, slots=True)
class Buffers:
    """One step's tensors: layers and residuals [rows, hidden] bf16, out [rows, LAYERS, hidden] fp16."""

    layers: list[Tensor]
    residuals: list[Tensor]
    rows: Tensor
    out: Tensor
    counts: Tensor

    @classmethod
    def make(cls, rows: int, hidden: int, out: Tensor | None = None) -> Buffers:
        states = [torch.randn(rows, hidden, device="cuda").bfloat16() for _ in range(2 * LAYERS)]
        index = torch.randperm(rows, device="cuda").int()
        if out is None:
            out = torch.empty(rows, LAYERS, hidden, dtype=torch.float16, device="cuda")
        counts = torch.zeros(LAYERS, 4, dtype=torch.int64, device="cuda")
        return cls(states[:LAYERS], states[LAYERS:], index, out, counts)

    def bind(self, library: NativeLibrary, pair: bool = False, max_blocks: int = 0) -> Callable[[], None]:
        residuals = self.residuals if pair else None
        bound = NativeGather(
            library, self.layers, self.rows, self.out, self.counts, None, None, residuals, max_blocks=max_blocks
        )
        return lambda: bound(self.layers, None, residuals)


def gather(library: NativeLibrary, rows: int, hidden: int, pair: bool) -> Work:
    """The kernel alone; bytes read and written are both counted."""
    each = rows * LAYERS * hidden * 2 * (3 if pair else 2)
    sets = [Buffers.make(rows, hidden) for _ in range(max(2, min(256, BEYOND_L2_BYTES // each)))]
    name = f"gather, {rows} rows x {LAYERS} x {hidden}{', pair' if pair else ''}"
    return Work(name, each * len(sets), recorded([s.bind(library, pair) for s in sets]), parts=len(sets))


def gather_triton(rows: int, hidden: int) -> Work:
    from extractor.kernels.gather import gather_rows_triton

    each = rows * LAYERS * hidden * 2 * 2
    sets = [Buffers.make(rows, hidden) for _ in range(max(2, min(256, BEYOND_L2_BYTES // each)))]
    calls = [(lambda s=s: gather_rows_triton(s.layers, s.rows, s.out, s.counts)) for s in sets]
    name = f"gather by Triton, {rows} rows x {LAYERS} x {hidden}"
    return Work(name, each * len(sets), recorded(calls), parts=len(sets))


def zero_copy(library: NativeLibrary, rows: int, hidden: int, blocks: int) -> Work:
    """The kernel storing straight into pinned host memory, with a capped grid; bytes written are counted."""
    out = torch.empty(rows, LAYERS, hidden, dtype=torch.float16, pin_memory=True)
    call = Buffers.make(rows, hidden, out).bind(library, max_blocks=blocks)
    return Work(f"zero-copy stores, {rows} rows, {blocks} blocks", out.nbytes, call)


class Pipeline:
    """Gather on the current stream, copy on a side stream, `slots` slots with an event each way: the ring's shape."""

    def __init__(self, library: NativeLibrary, rows: int, hidden: int, slots: int = 4) -> None:
        self.sets = [Buffers.make(rows, hidden) for _ in range(slots)]
        self.calls = [s.bind(library) for s in self.sets]
        self.pinned = [torch.empty(s.out.shape, dtype=s.out.dtype, pin_memory=True) for s in self.sets]
        self.copied = [torch.cuda.Event() for _ in self.sets]
        self.side = torch.cuda.Stream()
        self.turn = 0

    def step(self) -> None:
        slot = self.turn % len(self.sets)
        self.turn += 1
        current = torch.cuda.current_stream()
        current.wait_event(self.copied[slot])
        self.calls[slot]()
        self.side.wait_stream(current)
        with torch.cuda.stream(self.side):
            self.pinned[slot].copy_(self.sets[slot].out, non_blocking=True)
            self.copied[slot].record()

    def finish(self) -> None:
        torch.cuda.current_stream().wait_stream(self.side)


def pipeline(library: NativeLibrary, rows: int, hidden: int, steps: int = 40) -> Work:
    pipe = Pipeline(library, rows, hidden)

    def run() -> None:
        for _ in range(steps):
            pipe.step()
        pipe.finish()

    nbytes = pipe.pinned[0].nbytes * steps
    return Work(f"gather + copy to the host, {rows} rows x {LAYERS} x {hidden}", nbytes, run, parts=steps)


def added_step_time(library: NativeLibrary, tokens: int, matrices: int, rows: int, hidden: int) -> float:
    """The share that capture adds to a stand-in for a model step: `matrices` products [tokens, 8192] x [8192, 8192]."""
    weights = torch.randn(MATRIX, MATRIX, device="cuda").bfloat16()
    x, y = torch.randn(2, tokens, MATRIX, device="cuda").bfloat16()
    pipe = Pipeline(library, rows, hidden)

    def steps(with_capture: bool) -> None:
        for _ in range(10):
            for _ in range(matrices):
                torch.mm(x, weights, out=y)
            if with_capture:
                pipe.step()

    without = [seconds(lambda: steps(False), 3) for _ in range(2)]
    captured = [seconds(lambda: steps(True), 3) for _ in range(2)]
    return min(captured) / min(without) - 1


@contextlib.contextmanager
def running_product() -> Iterator[None]:
    """Another stream multiplies 8192 x 8192 matrices without a pause."""
    stop, stream = threading.Event(), torch.cuda.Stream()
    a, b, c = (torch.randn(MATRIX, MATRIX, device="cuda").bfloat16() for _ in range(3))

    def loop() -> None:
        with torch.cuda.stream(stream):
            while not stop.is_set():
                for _ in range(8):
                    torch.mm(a, b, out=c)
                stream.synchronize()

    torch.cuda.synchronize()
    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
