"""What does the ring cost, beside a memcpy of the bytes that it delivers and beside the gather without a ring?

    pytest bench/ring.py --benchmark-columns=median,iqr,rounds --benchmark-group-by=group

Steps of 1,024 rows of [3, 7168] bf16 states, stored as fp16 (43,008 bytes a row), on the CPU: the gather runs on the
engine's thread. The last group is the engine thread's share of a GPU step: everything but the device's own work, for
32 rows, with streams that drop what is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from extractor import ops
from extractor.capture import Capture, Chunk
from extractor.chunk import write_index
from extractor.detect import Detectors
from extractor.pinned import HostMemory
from extractor.slot import SlotLayout
from extractor.transfer import DeviceTransfer

ROWS, LAYERS, HIDDEN = 1024, 3, 7168
STEPS = 4
STEP_BYTES = ROWS * LAYERS * HIDDEN * 2
CHUNKS = [Chunk("a", 0, 0, ROWS // 2), Chunk("b", 0, ROWS // 2, ROWS // 2)]
GROUP = f"{STEPS} steps of {ROWS} rows, {STEPS * STEP_BYTES / 1e6:.0f} MB"


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
    torch.set_num_threads(1)
    return [torch.randn(ROWS, HIDDEN).bfloat16() for _ in range(LAYERS)]


def open_capture(sink: Sink, slot_rows: int = ROWS) -> Capture:
    sizes = {"num_layers": LAYERS, "hidden_size": HIDDEN, "slot_rows": slot_rows, "num_slots": 4}
    return Capture(dtype=torch.float16, device=torch.device("cpu"), sink=sink, **sizes)


def memcpy(layers: list[torch.Tensor]) -> Callable[[], None]:
    source = np.ones((STEPS, STEP_BYTES), dtype=np.uint8)
    copy = np.zeros_like(source[0])

    def run() -> None:
        for step in range(STEPS):
            np.copyto(copy, source[step])

    return run


def gather_alone(layers: list[torch.Tensor]) -> Callable[[], None]:
    index = np.empty(2 * ROWS, dtype=np.int32)
    write_index(index, CHUNKS)
    rows, owners = torch.from_numpy(index).view(2, ROWS)
    out = torch.zeros(ROWS, LAYERS, HIDDEN, dtype=torch.float16)
    counts = torch.zeros(len(CHUNKS), LAYERS, 4, dtype=torch.int64)

    def run() -> None:
        for _ in range(STEPS):
            ops.gather_rows(layers, rows, out, counts, owners=owners)

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
    f"gather_rows ({ops.__name__}), no ring": gather_alone,
    "ring, sink does nothing": ring("nothing"),
    "ring, sink copies": ring("memcpy"),
    "ring, sink runs the detectors": ring("detectors"),
    "detectors alone": detectors_alone,
}


@pytest.mark.parametrize("name", VARIANTS)
def test_throughput(benchmark, layers, name):
    benchmark.group = GROUP
    benchmark.pedantic(VARIANTS[name](layers), rounds=7, warmup_rounds=1)
    benchmark.extra_info["GB/s"] = STEPS * STEP_BYTES / benchmark.stats.stats.median / 1e9


class NoDevice:
    """Streams, events and their work, without a device: what remains is the engine thread's own time."""

    def __init__(self) -> None:
        self.copies = self

    def engine(self) -> NoDevice:
        return self

    def event(self) -> NoDevice:
        return self

    def launch(self, stream: NoDevice, work: Callable[[], object]) -> None:
        pass

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
    benchmark.group = "one step of 32 rows, without the device's work"
    chunks = [Chunk(str(number), 0, number, 32 // num_chunks) for number in range(num_chunks)]
    benchmark.pedantic(device_capture.step, args=(layers, chunks), rounds=2000, warmup_rounds=50)
