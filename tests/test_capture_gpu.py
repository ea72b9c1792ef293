"""The same ring on a real GPU: values, order, pinned memory, and a step that does not wait for the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ring_cases import HIDDEN, LAYERS, Recorder, Step, assert_written, layer_tensors

from extractor.capture import Capture, Chunk
from extractor.errors import EngineError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

SLOT_ROWS, STEP_ROWS = 8, 20
LATE = 2_000_000  # clock cycles, about a millisecond: the device always lags behind the engine's thread
VERY_LATE = 1_000_000_000


def open_capture(sink: Recorder, num_slots: int = 4) -> Capture:
    sizes = {"num_layers": LAYERS, "hidden_size": HIDDEN, "slot_rows": SLOT_ROWS, "num_slots": num_slots}
    return Capture(dtype=torch.float16, device=torch.device("cuda"), sink=sink, **sizes)


def persistent_layers() -> list[torch.Tensor]:
    return [torch.zeros(STEP_ROWS, HIDDEN, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)]


def run_engine(capture: Capture, forward: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> list[Step]:
    steps: list[Step] = []
    for number in range(30):
        states = layer_tensors(STEP_ROWS, number)
        layers = forward([state.contiguous().cuda() for state in states])
        chunks = [Chunk(f"{number}b", 0, 12, 8), Chunk(f"{number}a", number, number % 5, 3)]
        capture.step(layers, chunks)
        steps.append((states, chunks))
    capture.drain()
    return steps


def test_rows_are_right_when_the_device_lags_and_buffers_are_reused() -> None:
    layers = persistent_layers()

    def forward(states: list[torch.Tensor]) -> list[torch.Tensor]:
        torch.cuda._sleep(LATE)
        for layer, state in zip(layers, states, strict=True):
            layer.copy_(state)
        return layers

    sink = Recorder()
    capture = open_capture(sink)
    assert_written(sink, run_engine(capture, forward), torch.float16, SLOT_ROWS)
    assert capture.stats.copy_wait_seconds > 0
    capture.close()


def test_rows_of_a_replayed_graph_are_right() -> None:
    inputs, layers, graph = persistent_layers(), persistent_layers(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer, source in zip(layers, inputs, strict=True):
            layer.copy_(source)

    def forward(states: list[torch.Tensor]) -> list[torch.Tensor]:
        for source, state in zip(inputs, states, strict=True):
            source.copy_(state)
        graph.replay()
        return layers

    sink = Recorder()
    capture = open_capture(sink)
    assert_written(sink, run_engine(capture, forward), torch.float16, SLOT_ROWS)
    capture.close()


def test_a_step_returns_before_the_device_is_done() -> None:
    capture = open_capture(Recorder())
    layers = persistent_layers()
    capture.step(layers, [Chunk("warm-up", 0, 0, 4)])
    capture.drain()
    torch.cuda._sleep(VERY_LATE)
    capture.step(layers, [Chunk("a", 0, 0, 4)])
    assert not torch.cuda.current_stream().query()
    capture.drain()
    capture.close()


def test_host_slots_are_pinned() -> None:
    capture = open_capture(Recorder())
    slots = capture._transfer.slots
    assert all(slot.buffer.is_pinned() for slot in slots)
    capture.close()
    assert not any(slot.buffer.is_pinned() for slot in slots)


def test_a_step_inside_a_graph_is_refused() -> None:
    capture = open_capture(Recorder())
    layers = persistent_layers()
    with pytest.raises(EngineError, match="CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        capture.step(layers, [Chunk("a", 0, 0, 4)])
    capture.close()
