"""A device for bench/gpu_ring.py where there is none: FakeStreams, which run as late as the ring's events allow."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from fake_streams import FakeStreams

from extractor import capture as capture_module
from extractor.bench.gpu_ring import VERY_LATE
from extractor.bench.ring_rows import LAYERS
from extractor.capture import Capture, Sink
from extractor.errors import EngineError
from extractor.pinned import HostMemory
from extractor.slot import SlotLayout
from extractor.transfer import DeviceTransfer


class FakeGpu:
    """`streams` decides what runs when; `transfer` and `kind` may be wrong ones, which a scenario must notice."""

    def __init__(self, monkeypatch, streams=None, transfer=DeviceTransfer, kind: type[Capture] = Capture) -> None:
        self.device = torch.device("cpu")
        self.streams = streams or FakeStreams("random")
        self.graph = False
        self._transfer, self._kind = transfer, kind
        self._open: set[int] = set()
        monkeypatch.setattr(capture_module, "open_transfer", self._open_transfer)

    def _open_transfer(self, layout: SlotLayout, num_slots: int, device: torch.device) -> DeviceTransfer:
        memory = HostMemory(layout.nbytes, num_slots, self)
        return self._transfer(layout, memory, self._watched(), device)

    def _watched(self) -> FakeStreams:
        """The streams, which refuse to be asked for while a graph is recorded, as CudaStreams do."""
        plain = type(self.streams).engine

        def engine() -> object:
            if self.graph:
                raise EngineError("a capture step ran while a CUDA graph was being recorded")
            return plain(self.streams)

        self.streams.engine = engine
        return self.streams

    # The driver's part in pinning.
    def register(self, address: int, nbytes: int) -> int:
        self._open.add(address)
        return 0

    def unregister(self, address: int) -> int:
        self._open.discard(address)
        return 0

    def describe(self, code: int) -> str:
        return str(code)

    def open(self, sink: Sink, hidden: int, dtype: torch.dtype, slot_rows: int, num_slots: int) -> Capture:
        sizes = {"num_layers": LAYERS, "hidden_size": hidden, "slot_rows": slot_rows, "num_slots": num_slots}
        return self._kind(dtype=dtype, device=self.device, sink=sink, **sizes)

    def enqueue(self, work: Callable[[], object]) -> None:
        self.streams.gather(self.streams.forward, work)

    def recorded(self, work: Callable[[], object]) -> Callable[[], None]:
        return lambda: self.enqueue(work)

    def sleep(self, cycles: int) -> None:
        if cycles >= VERY_LATE:
            self.streams.hold()
            threading.Timer(0.1, self.streams.release).start()

    def busy(self) -> bool:
        return bool(self.streams.forward.queue)

    def inside_a_graph(self, work: Callable[[], object]) -> None:
        self.graph = True
        try:
            work()
        finally:
            self.graph = False

    def pinned(self, buffer: torch.Tensor) -> bool:
        return buffer.data_ptr() in self._open
