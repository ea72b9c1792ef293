"""The scenarios of bench/gpu_ring.py without a GPU: the ring passes all of them, and a wrong one does not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from fake_streams import FakeStreams
from gpu_standin import FakeGpu

from extractor import ring as ring_module
from extractor.bench import gpu_ring
from extractor.bench.gpu_ring import SCENARIOS
from extractor.capture import Capture, Chunk
from extractor.transfer import DeviceTransfer


@pytest.fixture(autouse=True)
def small_and_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "POLL_SECONDS", 0.0)
    for name, value in {"LARGE_HIDDEN": 64, "LARGE_SLOT_ROWS": 6, "LARGE_ROWS": 50, "NUM_STEPS": 8}.items():
        monkeypatch.setattr(gpu_ring, name, value)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_ring_passes(monkeypatch, scenario) -> None:
    assert SCENARIOS[scenario](FakeGpu(monkeypatch)) == []


class SwappedLayers(Capture):
    def step(self, layers: Sequence[torch.Tensor], chunks: Sequence[Chunk]) -> None:
        super().step(layers[::-1], chunks)


class ForgottenChunk(Capture):
    def step(self, layers: Sequence[torch.Tensor], chunks: Sequence[Chunk]) -> None:
        super().step(layers, chunks[1:])


class WaitingCapture(Capture):
    def step(self, layers: Sequence[torch.Tensor], chunks: Sequence[Chunk]) -> None:
        super().step(layers, chunks)
        self.drain()


class KeptPinned(Capture):
    def close(self) -> bool:
        self._transfer._memory._registered.clear()
        return super().close()


class UnclearedStreams(FakeStreams):
    def clear(self, stream: object, at: int, nbytes: int) -> None:
        pass


class ShortCopyStreams(FakeStreams):
    def copy_out(self, stream: object, to: int, source: int, nbytes: int) -> None:
        super().copy_out(stream, to, source, nbytes - 2)


class AllReady(DeviceTransfer):
    def ready(self, slot: int) -> bool:
        return True


REUSED, GRAPH, LARGE = "a late device and reused tensors", "a replayed CUDA graph", "full-sized rows over many slots"
FAULTS = {
    "layers swapped": (REUSED, {"kind": SwappedLayers}, "values differ"),
    "layers swapped in a large step": (LARGE, {"kind": SwappedLayers}, "values differ"),
    "a chunk forgotten": (GRAPH, {"kind": ForgottenChunk}, "chunks arrived"),
    "counts not cleared": (REUSED, {"streams": UnclearedStreams("engine")}, "counts are"),
    "the last value not copied": (REUSED, {"streams": ShortCopyStreams("engine")}, "values differ"),
    "the gather does not wait for the last copy": (LARGE, {"streams": FakeStreams("engine", 0, "engine")}, "differ"),
    "the copy does not wait for the gather": (LARGE, {"streams": FakeStreams("copies", 0, "copies")}, "differ"),
    "the writer does not wait for the copy": (REUSED, {"transfer": AllReady}, "differ"),
    "a step waits": ("a step returns before the device is done", {"kind": WaitingCapture}, "only when the device"),
    "still pinned": ("slots are pinned", {"kind": KeptPinned}, "still pinned"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_ring_is_noticed(monkeypatch, fault) -> None:
    scenario, wrong, says = FAULTS[fault]
    found = SCENARIOS[scenario](FakeGpu(monkeypatch, **wrong))
    assert any(says in text for text in found), found


def test_slots_that_are_not_pinned_are_noticed(monkeypatch) -> None:
    gpu = FakeGpu(monkeypatch)
    monkeypatch.setattr(gpu, "register", lambda address, nbytes: 0)
    assert SCENARIOS["slots are pinned"](gpu) == ["7 of 7 open slots are not pinned"]


def test_a_step_inside_a_graph_that_is_accepted_is_noticed(monkeypatch) -> None:
    gpu = FakeGpu(monkeypatch)
    monkeypatch.setattr(gpu, "inside_a_graph", lambda work: work())
    assert SCENARIOS["a step inside a graph is refused"](gpu) == [
        "a step inside the recording of a CUDA graph was accepted"
    ]


def test_a_device_that_is_never_late_proves_nothing(monkeypatch) -> None:
    """Order can only be wrong where the device lags: a run without lag must not pass for a proof."""

    class Prompt(DeviceTransfer):
        def ready(self, slot: int) -> bool:
            while not super().ready(slot):
                pass
            return True

    def wait_ready(self, slot: int) -> bool:
        return self._ready(slot)

    monkeypatch.setattr(ring_module.Ring, "_wait_ready", wait_ready)
    found = SCENARIOS[REUSED](FakeGpu(monkeypatch, transfer=Prompt))
    assert found == ["the writer never waited for a copy: the device was not late, so order is unproven"]


def test_an_error_on_the_new_thread_comes_back(monkeypatch) -> None:
    gpu = FakeGpu(monkeypatch)
    monkeypatch.setattr(gpu, "register", lambda address, nbytes: 201)
    (text,) = SCENARIOS["opened and run on a new thread"](gpu)
    assert text.startswith("EngineError: the CUDA driver refused to pin slot 0 of 7")
