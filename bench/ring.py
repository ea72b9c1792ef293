"""What does the ring cost, beside a memcpy of the delivered bytes and the gather without a ring?

    pytest bench/ring.py -s

Steps of 1,024 rows of [3, 7168] bf16 states, stored as fp16 (43,008 bytes a row), on the CPU, where the engine's thread
gathers. The second benchmark is that thread's share of a GPU step of 32 rows: all but the device's own work, with
streams that drop what is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from settings import size
from timing import Variant, compare

from extractor import ops
from extractor.capture import Capture, Chunk
from extractor.chunk import write_index
from extractor.detect import Detectors
from extractor.pinned import HostMemory
from extractor.slot import SlotLayout
from extractor.transfer import DeviceTransfer

ROWS, LAYERS, HIDDEN = size(1024, toy=32), 3, 7168
STEPS = NUM_SLOTS = 4
STEP_BYTES = ROWS * LAYERS * HIDDEN * 2
CHUNKS = [Chunk("a", 0, 0, ROWS // 2), Chunk("b", 0, ROWS // 2, ROWS // 2)]


class Sink:
    """What the writer thread does with rows: nothing, a copy, or the detectors' look at them."""

    def __init__(self, kind: str) -> None:
        self._copy = np.ones((ROWS, LAYERS, HIDDEN), dtype=np.float16)
        self._tokens = np.arange(ROWS, dtype=np.int32)
        self._detectors = Detectors((2, 30, 58))
        self.write = {"nothing": self._nothing, "memcpy": self._memcpy, "detectors": self._detect}[kind]

    def _nothing(self, chunk: Chunk, rows: np.ndarray, counts: np.ndarray) -> None:
        pass

    def _memcpy(self, chunk: Chunk, rows: np.ndarray, counts: np.ndarray) -> None:
        np.copyto(self._copy[: chunk.count], rows)

    def _detect(self, chunk: Chunk, rows: np.ndarray, counts: np.ndarray) -> None:
        self._detectors.check(chunk, rows, counts, self._tokens[: chunk.count])


@pytest.fixture(scope="module")
def layers() -> list[torch.Tensor]:
    return [torch.randn(ROWS, HIDDEN).bfloat16() for _ in range(LAYERS)]


def open_capture(sink: Sink, slot_rows: int = ROWS) -> Capture:
    sizes = {"num_layers": LAYERS, "hidden_size": HIDDEN, "slot_rows": slot_rows, "num_slots": NUM_SLOTS}
    return Capture(dtype=torch.float16, device=torch.device("cpu"), sink=sink, **sizes)


def memcpy(layers: list[torch.Tensor]) -> Callable[[], None]:
    source = np.ones((STEPS, STEP_BYTES), dtype=np.uint8)
    copy = np.zeros_like(source)

    def run() -> None:
        np.copyto(copy, source)

    return run


def gather_alone(layers: list[torch.Tensor]) -> Callable[[], None]:
    index = np.empty((2, ROWS), dtype=np.int32)
    write_index(index, CHUNKS)
    rows, owners = torch.from_numpy(index)
    outs = [torch.zeros(ROWS, LAYERS, HIDDEN, dtype=torch.float16) for _ in range(NUM_SLOTS)]
    counts = torch.zeros(ROWS, LAYERS, 4, dtype=torch.int64)
    gathers = [ops.bind_gather(layers, rows, out, counts, owners=owners) for out in outs]

    def run() -> None:
        for gather in gathers:
            gather(layers)

    return run


def ring(sink: str) -> Callable[[list[torch.Tensor]], Callable[[], None]]:
    def prepare(layers: list[torch.Tensor]) -> Callable[[], None]:
        capture = open_capture(Sink(sink))

        def run() -> None:
            for _ in range(STEPS):
                capture.step(layers, CHUNKS)
            capture.drain()

        return run

    return prepare


def detectors_alone(layers: list[torch.Tensor]) -> Callable[[], None]:
    sink = Sink("detectors")
    rows = torch.stack(layers, dim=1).half().numpy()
    counts = np.zeros((LAYERS, 4), dtype=np.int64)

    def run() -> None:
        for _ in range(STEPS):
            sink.write(Chunk("a", 0, 0, ROWS), rows, counts)

    return run


VARIANTS = {
    "memcpy of the delivered bytes": memcpy,
    "gather_rows, no ring": gather_alone,
    "ring, sink does nothing": ring("nothing"),
    "ring, sink copies": ring("memcpy"),
    "ring, sink runs the detectors": ring("detectors"),
    "detectors alone": detectors_alone,
}
NOTES = {
    "memcpy of the delivered bytes": "one copy, no conversion, no thread",
    "gather_rows, no ring": "bf16 -> fp16 with counts, on the engine's thread",
    "ring, sink does nothing": "gather, slots, writer thread",
    "ring, sink copies": "and a memcpy on the writer thread",
    "ring, sink runs the detectors": "and the look at every row, on the writer thread",
    "detectors alone": "no gather, no ring",
}


def test_throughput_side_by_side(benchmark, layers):
    runs = {name: Variant(prepare(layers), NOTES[name]) for name, prepare in VARIANTS.items()}
    title = f"{STEPS} steps of {ROWS} rows, {STEPS * STEP_BYTES / 1e6:.0f} MB, gather: {ops.implementation('cpu').name}"
    compare(benchmark, title, runs, work=STEPS * STEP_BYTES / 1e9, rate_unit="GB/s")


class NoDevice:
    """Streams, events and their work, without a device: what remains is the engine thread's own time."""

    def __init__(self) -> None:
        self.copies = self
        self.device = nullcontext()

    def begin(self) -> None:
        pass

    def engine(self) -> NoDevice:
        return self

    def event(self) -> NoDevice:
        return self

    def gather(self, stream: NoDevice, work: Callable[[], object]) -> None:
        pass

    def clear(self, stream: NoDevice, at: int, nbytes: int) -> None:
        pass

    def copy_in(self, stream: NoDevice, to: int, source: int, nbytes: int) -> None:
        pass

    copy_out = copy_in

    def wait_event(self, event: NoDevice) -> None:
        pass

    def record(self, stream: NoDevice) -> None:
        pass

    def query(self) -> bool:
        return True


@pytest.fixture
def device_capture(monkeypatch) -> Iterator[Capture]:
    def opened(layout: SlotLayout, num_slots: int, device: torch.device) -> DeviceTransfer:
        return DeviceTransfer(layout, HostMemory(layout.nbytes, num_slots), NoDevice(), device)

    monkeypatch.setattr("extractor.capture.open_transfer", opened)
    capture = open_capture(Sink("nothing"), slot_rows=32)
    yield capture
    capture.close()


@pytest.mark.parametrize("num_chunks", [1, 32])
def test_engine_threads_share_of_a_gpu_step(benchmark, layers, device_capture, num_chunks):
    chunks = [Chunk(str(number), 0, number, 32 // num_chunks) for number in range(num_chunks)]
    benchmark.pedantic(
        device_capture.step, args=(layers, chunks), rounds=size(2000, toy=5), warmup_rounds=size(50, toy=1)
    )
