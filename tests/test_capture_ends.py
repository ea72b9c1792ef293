"""How a capture waits, fails and stops: whatever happens, an error comes out and nothing hangs."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from ring_cases import HIDDEN, LAYERS, WAIT, Recorder, layer_tensors, open_capture

from extractor import capture as capture_module
from extractor.capture import Capture, Chunk
from extractor.errors import EngineError, UsageError

STEP = [Chunk("a", 0, 0, 4)]


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Run `work` on a thread; what it raises lands in the list."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


def fill(capture: Capture, sink: Recorder) -> list[torch.Tensor]:
    """Publish every slot while the writer is held inside the first write."""
    sink.gate.clear()
    layers = layer_tensors(4)
    for _ in range(capture.stats.num_slots):
        capture.step(layers, STEP)
    assert sink.entered.wait(WAIT)
    return layers


def test_a_closed_capture_gives_its_memory_back_without_a_collection() -> None:
    gc.collect()
    gc.disable()
    try:
        capture = open_capture(Recorder())
        capture.step(layer_tensors(4), STEP)
        capture.drain()
        slot = weakref.ref(capture._transfer.slots[0].buffer)
        assert capture.close()
        assert capture.close(), "again"
        del capture
        assert slot() is None
    finally:
        gc.enable()


def traceback_length(error: BaseException) -> int:
    return sum(1 for _ in traceback.walk_tb(error.__traceback__))


def run_steps(capture: Capture, layers: list[torch.Tensor]) -> None:
    for _ in range(100):
        capture.step(layers, STEP)


def test_a_step_waits_for_a_slow_sink_and_the_wait_is_measured() -> None:
    sink = Recorder()
    capture = open_capture(sink)
    layers = fill(capture, sink)
    assert capture.stats.stalled_seconds == 0.0
    thread, errors = in_thread(lambda: capture.step(layers, STEP))
    time.sleep(0.2)
    assert thread.is_alive()
    sink.gate.set()
    thread.join(WAIT)
    capture.drain()
    assert errors == []
    assert len(sink.written) == 4
    assert capture.stats.stalled_seconds > 0
    assert capture.stats.write_seconds >= 0.15
    assert capture.stats.max_slots_used == 3


def test_a_fast_sink_never_stalls_the_step() -> None:
    capture = open_capture(Recorder())
    for seed in range(5):
        capture.step(layer_tensors(4, seed), STEP)
        capture.drain()
    assert capture.stats.stalled_seconds == 0.0
    assert capture.stats.max_slots_used == 1


def test_the_sinks_error_stops_the_run_with_its_error() -> None:
    sink = Recorder(fail_at=2)
    capture = open_capture(sink)
    layers = layer_tensors(4)
    with pytest.raises(OSError, match="No space left") as first:
        run_steps(capture, layers)
    for again in (lambda: capture.step(layers, STEP), capture.drain, capture.check):
        with pytest.raises(OSError, match="No space left") as later:
            again()
        assert later.value is first.value
        assert traceback_length(later.value) <= traceback_length(first.value) + 1, "each raise added to the last one's"
    capture.close()
    assert len(sink.written) == 2


def test_a_waiting_step_gets_the_sinks_error() -> None:
    sink = Recorder(fail_at=0)
    capture = open_capture(sink)
    layers = fill(capture, sink)
    thread, errors = in_thread(lambda: capture.step(layers, STEP))
    time.sleep(0.05)
    sink.gate.set()
    thread.join(WAIT)
    assert [type(error) for error in errors] == [OSError]


def test_drain_gets_the_error_of_the_last_write() -> None:
    capture = open_capture(Recorder(fail_at=0))
    capture.step(layer_tensors(4), STEP)
    with pytest.raises(OSError, match="No space left"):
        capture.drain()


def test_close_in_the_middle_drops_what_was_not_begun() -> None:
    sink = Recorder()
    capture = open_capture(sink)
    layers = fill(capture, sink)
    waiting, errors = in_thread(lambda: capture.step(layers, STEP))
    closing, _ = in_thread(capture.close)
    waiting.join(WAIT)
    sink.gate.set()
    closing.join(WAIT)
    assert not closing.is_alive()
    assert [type(error) for error in errors] == [EngineError]
    assert len(sink.written) == 1
    for late in (lambda: capture.step(layers, STEP), capture.drain):
        with pytest.raises(EngineError):
            late()
    capture.close()


def test_close_after_drain_is_quiet_and_a_second_drain_has_nothing_to_do() -> None:
    capture = open_capture(Recorder())
    capture.step(layer_tensors(4), STEP)
    capture.drain()
    assert capture.close()
    assert capture.close()
    capture.drain()
    with pytest.raises(EngineError, match="closed"):
        capture.step(layer_tensors(4), STEP)


def test_close_gives_up_on_a_stuck_sink_and_leaves_its_memory(monkeypatch, caplog) -> None:
    monkeypatch.setattr(capture_module, "CLOSE_SECONDS", 0.1)
    abandoned: list[object] = []
    monkeypatch.setattr(capture_module, "_abandoned", abandoned)
    sink = Recorder()
    capture = open_capture(sink)
    fill(capture, sink)
    with caplog.at_level(logging.WARNING):
        assert not capture.close()
    assert "did not stop" in caplog.text
    assert len(abandoned) == 1
    assert not capture.close()
    sink.gate.set()
    capture._ring._thread.join(WAIT)
    assert capture.close()
    assert len(abandoned) == 1


def test_an_interrupted_step_raises_and_what_was_published_can_be_drained() -> None:
    sink = Recorder()
    capture = open_capture(sink)
    layers = fill(capture, sink)
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        capture.step(layers, STEP)
    sink.gate.set()
    capture.drain()
    assert len(sink.written) == 3
    with pytest.raises(EngineError, match="half way"):
        capture.step(layers, STEP)
    capture.close()


def test_a_view_kept_past_the_call_does_not_crash_after_close() -> None:
    kept: list[np.ndarray] = []

    class Keeper:
        def write(self, chunk: Chunk, rows: np.ndarray, counts: np.ndarray) -> None:
            kept.append(rows)

    capture = open_capture(Keeper())
    capture.step(layer_tensors(4), STEP)
    capture.drain()
    capture.close()
    del capture
    assert kept[0].shape == (4, LAYERS, HIDDEN)
    assert int(kept[0].view(np.uint16).astype(np.int64).sum()) > 0


@pytest.mark.parametrize("chunk", [Chunk("s", 7, 3, 2), Chunk("s", 7, -1, 2), Chunk("s", 7, 0, 0), Chunk("s", 7, 4, 1)])
def test_chunks_outside_the_step_are_refused_by_name(chunk) -> None:
    sink = Recorder()
    capture = open_capture(sink)
    with pytest.raises(EngineError, match="'s', position 7.*4 rows"):
        capture.step(layer_tensors(4), [*STEP, chunk])
    capture.step(layer_tensors(4), STEP)  # nothing was captured, nothing is broken
    capture.drain()
    assert len(sink.written) == 1


def test_a_wrong_number_of_layers_is_refused() -> None:
    with pytest.raises(EngineError, match="2 layers.*for 3"):
        open_capture(Recorder()).step(layer_tensors(4)[:2], STEP)


@pytest.mark.parametrize("change", [{"slot_rows": 0}, {"num_slots": 0}, {"dtype": torch.float32}, {"device": "meta"}])
def test_impossible_rings_are_refused(change) -> None:
    sizes = {"num_layers": 3, "hidden_size": 8, "slot_rows": 4, "num_slots": 2, "dtype": torch.float16, "device": "cpu"}
    sizes |= change
    with pytest.raises(UsageError):
        Capture(**{**sizes, "device": torch.device(sizes["device"])}, sink=Recorder())


def test_step_without_chunks_captures_nothing() -> None:
    capture = open_capture(Recorder())
    capture.step(layer_tensors(4), [])
    capture.drain()
    assert (capture.stats.steps, capture.stats.rows, capture.stats.max_slots_used) == (1, 0, 0)
