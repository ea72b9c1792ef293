"""What the kernel is measured for: ceilings, the gather beside them, and stores straight into host memory.

Work is prepared first (buffers, CUDA graphs) and then timed, so that it can be timed again while another stream
multiplies matrices. Sources and outputs rotate over more memory than the L2 cache holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from extractor.bench.gpu_timing import Work, recorded
from extractor.gather_native import NativeGather
from extractor.native import NativeLibrary

LAYERS = 3
HIDDEN, ROWS, BLOCKS = (4096, 7168), (32, 1024, 8192), (4, 8, 16, 132)
COPIES = (64 << 10, 1 << 20, 16 << 20, 64 << 20, 1 << 30)
DEVICE_COPY_BYTES = 1 << 30
HOST_CALLS = 2000
BEYOND_L2_BYTES = 256 << 20  # an H200 has 50 MB, a B200 126 MB
Plan = tuple[str, Callable[[], Work]]
DEVICE_COPY = "device copy, 1 GiB"


def plans(library: NativeLibrary) -> Iterator[Plan]:
    """(name, what prepares it), what matters most first."""
    yield DEVICE_COPY, device_copy
    for nbytes in COPIES:
        yield host_copy_name(nbytes), lambda nbytes=nbytes: host_copy(nbytes)
    for hidden in HIDDEN:
        for rows in ROWS:
            name = f"{rows} rows x {LAYERS} x {hidden}"
            yield f"gather, {name}", lambda r=rows, h=hidden: gather(library, r, h, False)
            yield f"gather, {name}, pair", lambda r=rows, h=hidden: gather(library, r, h, True)
    for rows in ROWS[:2]:
        for blocks in BLOCKS:
            name = f"zero-copy stores, {rows} rows, {blocks} blocks"
            yield name, lambda r=rows, b=blocks: zero_copy(library, r, HIDDEN[-1], b)


def triton_plans() -> Iterator[Plan]:
    for hidden in HIDDEN:
        for rows in ROWS:
            name = f"gather by Triton, {rows} rows x {LAYERS} x {hidden}"
            yield name, lambda r=rows, h=hidden: gather_triton(r, h)


def device_copy() -> Work:
    """The ceiling for everything that stays on the device; reads and writes are both counted."""
    source = torch.empty(DEVICE_COPY_BYTES, dtype=torch.uint8, device="cuda")
    copy = torch.empty_like(source)
    return Work(2 * source.nbytes, lambda: copy.copy_(source))


def host_copy(nbytes: int) -> Work:
    """The ceiling for the way to the host: one asynchronous copy into pinned memory."""
    source = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    return Work(nbytes, lambda: pinned.copy_(source, non_blocking=True))


def host_copy_name(nbytes: int) -> str:
    size = f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
    return f"copy to pinned memory, {size}"


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

    @classmethod
    def rotating(cls, rows: int, hidden: int, each_bytes: int) -> list[Buffers]:
        """As many as no cache holds, of which a call moves `each_bytes`."""
        return [cls.make(rows, hidden) for _ in range(max(2, min(256, BEYOND_L2_BYTES // each_bytes)))]

    def bind(self, library: NativeLibrary, pair: bool = False, max_blocks: int = 0) -> Callable[[], None]:
        residuals = self.residuals if pair else None
        bound = NativeGather(
            library, self.layers, self.rows, self.out, self.counts, None, None, residuals, max_blocks=max_blocks
        )
        return lambda: bound(self.layers, None, residuals)


def gather(library: NativeLibrary, rows: int, hidden: int, pair: bool) -> Work:
    """The kernel alone; bytes read and written are both counted."""
    each = rows * LAYERS * hidden * 2 * (3 if pair else 2)
    sets = Buffers.rotating(rows, hidden, each)
    return Work(each * len(sets), recorded([s.bind(library, pair) for s in sets]), parts=len(sets))


def gather_triton(rows: int, hidden: int) -> Work:
    from extractor.kernels.gather import gather_rows_triton

    each = rows * LAYERS * hidden * 2 * 2
    sets = Buffers.rotating(rows, hidden, each)
    calls = [(lambda s=s: gather_rows_triton(s.layers, s.rows, s.out, s.counts)) for s in sets]
    return Work(each * len(sets), recorded(calls), parts=len(sets))


def zero_copy(library: NativeLibrary, rows: int, hidden: int, blocks: int) -> Work:
    """The kernel storing straight into pinned host memory, with a capped grid; bytes written are counted."""
    out = torch.empty(rows, LAYERS, hidden, dtype=torch.float16, pin_memory=True)
    return Work(out.nbytes, Buffers.make(rows, hidden, out).bind(library, max_blocks=blocks))


def host_time(library: NativeLibrary) -> float:
    """Microseconds of the engine's thread for one launch; few rows, so that the device keeps up."""
    call = Buffers.make(8, 512).bind(library)
    call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(HOST_CALLS):
        call()
    taken = time.perf_counter() - started
    torch.cuda.synchronize()
    return taken / HOST_CALLS * 1e6
