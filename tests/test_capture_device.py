"""The order of work on a GPU, proven on a device that runs late and in any order that the events allow."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from fake_streams import FakeStreams
from ring_cases import HIDDEN, LAYERS, Recorder, Step, assert_written, layer_tensors

from extractor import capture as capture_module
from extractor import ring as ring_module
from extractor.capture import Capture, Chunk
from extractor.errors import UsageError
from extractor.pinned import HostMemory
from extractor.slot import SlotLayout
from extractor.transfer import DeviceTransfer

SLOT_ROWS, STEP_ROWS = 4, 14
SCHEDULES = [("engine", 0), ("copies", 0), *(("random", seed) for seed in range(4))]


class UnaskedTransfer(DeviceTransfer):
    """Wrong: takes every copy for done."""

    def ready(self, slot: int) -> bool:
        super().ready(slot)
        return True


class OneIndexTransfer(DeviceTransfer):
    """Wrong: every slot's rows are written to the first slot's index, which the device may not have read yet."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        for slot in self.slots:
            slot.index_array = self.slots[0].index_array
        self._index_of = self._starts[0]

    def _fill(self, engine: object, staging: object, host: int, chunks: int) -> None:
        super()._fill(engine, staging, self._index_of, chunks)


class SideGatherStreams(FakeStreams):
    """Wrong: gathers on the copies' stream, unordered with the forward pass before it and after it."""

    def engine(self):
        return self.copies


class Deaf:
    """Wrong: one stream's waits are forgotten."""

    def __init__(self, stream: str) -> None:
        self._stream = stream

    def __call__(self, order: str, seed: int) -> FakeStreams:
        return FakeStreams(order, seed, deaf=self._stream)


class UnclearedStreams(FakeStreams):
    """Wrong: counts go on from what the staging buffer's last use left."""

    def clear(self, stream: object, at: int, nbytes: int) -> None:
        pass


FAULTS = {
    "counts of the staging buffer's last use kept": (UnclearedStreams, DeviceTransfer),
    "the copy does not wait for the gather": (Deaf("copies"), DeviceTransfer),
    "the gather does not wait for the last copy out of its staging buffer": (Deaf("engine"), DeviceTransfer),
    "the gather runs beside the forward pass": (SideGatherStreams, DeviceTransfer),
    "the writer does not wait for the copy": (FakeStreams, UnaskedTransfer),
    "one index for all slots": (FakeStreams, OneIndexTransfer),
}


@pytest.fixture(autouse=True)
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "POLL_SECONDS", 0.0)


def open_on(monkeypatch, streams: FakeStreams, sink: Recorder, transfer=DeviceTransfer, num_slots: int = 5) -> Capture:
    """A capture whose device is `streams`; its device memory is ordinary."""

    def opened(layout: SlotLayout, num_slots: int, device: torch.device) -> DeviceTransfer:
        return transfer(layout, HostMemory(layout.nbytes, num_slots), streams, device)

    monkeypatch.setattr(capture_module, "open_transfer", opened)
    sizes = {"num_layers": LAYERS, "hidden_size": HIDDEN, "slot_rows": SLOT_ROWS, "num_slots": num_slots}
    return Capture(dtype=torch.float16, device=torch.device("cpu"), sink=sink, **sizes)


def run_engine(capture: Capture, streams: FakeStreams, num_steps: int = 12) -> list[Step]:
    """Forward passes that reuse the same layer tensors, as CUDA graphs do: each overwrites the last one's."""
    persistent = [torch.full((STEP_ROWS, HIDDEN), float("nan"), dtype=torch.bfloat16) for _ in range(LAYERS)]
    steps: list[Step] = []
    for number in range(num_steps):
        states = layer_tensors(STEP_ROWS, number)
        for layer, state in zip(persistent, states, strict=True):
            streams.gather(streams.forward, lambda layer=layer, state=state: layer.copy_(state))
        # A permuted batch each time, longer than one slot, so that consecutive slots come from one step.
        chunks = [Chunk(f"{number}b", 0, 9, 4), Chunk(f"{number}a", 8 * number, number % 4, 3 + number % 3)]
        capture.step(persistent, chunks)
        steps.append((states, chunks))
    return steps


def captured(monkeypatch, streams: FakeStreams, transfer: type[DeviceTransfer]) -> tuple[Recorder, list[Step]]:
    sink = Recorder()
    capture = open_on(monkeypatch, streams, sink, transfer)
    streams.hold()
    threading.Thread(target=release_when_full, args=(capture, streams), daemon=True).start()
    steps = run_engine(capture, streams)
    capture.drain()
    capture.close()
    return sink, steps


def release_when_full(capture: Capture, streams: FakeStreams) -> None:
    """Let the device begin only when every slot is enqueued: the latest that it can."""
    while capture.stats.max_slots_used < capture.stats.num_slots:
        time.sleep(0.001)
    streams.release()


@pytest.mark.parametrize(("order", "seed"), SCHEDULES)
def test_rows_are_right_whatever_the_device_does_first(monkeypatch, order, seed) -> None:
    streams = FakeStreams(order, seed)
    sink, steps = captured(monkeypatch, streams, DeviceTransfer)
    assert_written(sink, steps, torch.float16, SLOT_ROWS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_missing_order_is_caught(monkeypatch, fault) -> None:
    make_streams, transfer = FAULTS[fault]
    caught = 0
    for order, seed in SCHEDULES:
        try:
            sink, steps = captured(monkeypatch, make_streams(order, seed), transfer)
            assert_written(sink, steps, torch.float16, SLOT_ROWS)
        except (AssertionError, UsageError):  # wrong bytes, or an index so wrong that the gather refuses it
            caught += 1
    assert caught


def test_the_engines_thread_never_asks_the_device(monkeypatch) -> None:
    """A query is a driver call and a synchronisation a stall: `step` does neither."""
    streams = FakeStreams("random")
    capture = open_on(monkeypatch, streams, Recorder())
    run_engine(capture, streams)
    capture.drain()
    assert {thread.name for thread in streams.askers} == {"capture-writer"}
    assert streams.begun_on == "capture-writer"  # a thread's own device is 0, whatever the engine's is
    capture.close()


def test_a_full_ring_waits_for_the_device(monkeypatch) -> None:
    streams = FakeStreams("engine")
    capture = open_on(monkeypatch, streams, Recorder(), num_slots=2)
    streams.hold()
    threading.Timer(0.2, streams.release).start()
    run_engine(capture, streams, num_steps=2)
    capture.drain()
    assert capture.stats.stalled_seconds > 0
    assert capture.stats.copy_wait_seconds > 0
    assert capture.stats.max_slots_used == 2
    capture.close()


def test_a_device_error_stops_the_run_and_leaves_the_memory(monkeypatch) -> None:
    abandoned: list[object] = []
    monkeypatch.setattr(capture_module, "_abandoned", abandoned)
    streams = FakeStreams("engine")
    capture = open_on(monkeypatch, streams, Recorder())
    streams.error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        run_engine(capture, streams)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        capture.drain()
    capture.close()
    assert len(abandoned) == 1


def test_a_hung_device_does_not_hang_close(monkeypatch) -> None:
    """A collective whose peer died never ends; its rank must still be able to stop."""
    abandoned: list[object] = []
    monkeypatch.setattr(capture_module, "_abandoned", abandoned)
    monkeypatch.setattr(capture_module, "CLOSE_SECONDS", 0.1)
    streams = FakeStreams("engine")
    capture = open_on(monkeypatch, streams, Recorder())
    streams.hold()
    run_engine(capture, streams, num_steps=1)
    capture.close()
    assert len(abandoned) == 1


class InterruptedTransfer(DeviceTransfer):
    """Ctrl-C arrives when the copy has been enqueued and its event has not been recorded."""

    def gather(self, slot, layers, rows, chunks) -> None:
        used = self._copied[slot]
        self._copied[slot] = Interrupting()
        try:
            super().gather(slot, layers, rows, chunks)
        finally:
            self._copied[slot] = used


class Interrupting:
    def record(self, stream: object) -> None:
        raise KeyboardInterrupt


def test_close_after_an_interrupt_waits_for_the_copy_that_has_no_event(monkeypatch) -> None:
    streams = FakeStreams("engine")
    capture = open_on(monkeypatch, streams, Recorder(), InterruptedTransfer)
    streams.hold()
    with pytest.raises(KeyboardInterrupt):
        run_engine(capture, streams, num_steps=1)
    threading.Timer(0.1, streams.release).start()
    assert streams.copies.queue
    capture.close()
    assert not streams.forward.queue
    assert not streams.copies.queue


def test_close_waits_for_copies_that_nobody_will_read(monkeypatch) -> None:
    """Unmapping memory under a running copy would kill the process."""
    streams = FakeStreams("engine")
    sink = Recorder()
    capture = open_on(monkeypatch, streams, sink)
    streams.hold()
    run_engine(capture, streams, num_steps=2)
    threading.Timer(0.1, streams.release).start()
    capture.close()
    assert not streams.forward.queue
    assert not streams.copies.queue
    assert sink.written == []
