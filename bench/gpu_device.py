"""What the scenarios of the ring need of a GPU, and the CUDA device that has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from extractor.bench.gpu_timing import recorded
from extractor.bench.ring_rows import LAYERS
from extractor.capture import Capture, Sink


class Device(Protocol):
    """What a scenario needs of a GPU."""

    device: torch.device

    def open(self, sink: Sink, hidden: int, dtype: torch.dtype, slot_rows: int, num_slots: int) -> Capture: ...
    def enqueue(self, work: Callable[[], object]) -> None: ...
    def recorded(self, work: Callable[[], object]) -> Callable[[], None]: ...
    def sleep(self, cycles: int) -> None: ...
    def busy(self) -> bool: ...
    def inside_a_graph(self, work: Callable[[], object]) -> None: ...
    def pinned(self, buffer: Tensor) -> bool: ...


class Gpu:
    """A CUDA device."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda")

    def open(self, sink: Sink, hidden: int, dtype: torch.dtype, slot_rows: int, num_slots: int) -> Capture:
        sizes = {"num_layers": LAYERS, "hidden_size": hidden, "slot_rows": slot_rows, "num_slots": num_slots}
        return Capture(dtype=dtype, device=self.device, sink=sink, **sizes)

    def enqueue(self, work: Callable[[], object]) -> None:
        work()

    def recorded(self, work: Callable[[], object]) -> Callable[[], None]:
        return recorded([work])

    def sleep(self, cycles: int) -> None:
        with torch.cuda.device(self.device):
            torch.cuda._sleep(cycles)

    def busy(self) -> bool:
        return not torch.cuda.current_stream(self.device).query()

    def inside_a_graph(self, work: Callable[[], object]) -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            work()

    def pinned(self, buffer: Tensor) -> bool:
        return buffer.is_pinned()
