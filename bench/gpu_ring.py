"""Does the ring itself, `extractor.capture.Capture`, deliver the right rows on a GPU, in order and without waiting?

Each scenario returns what is wrong, in words; an empty list is right. What a scenario asks of the device is a `Gpu`, so
that the tests run all of them where there is none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing

import torch
from torch import Tensor

from extractor.bench.gpu_device import Device
from extractor.bench.ring_rows import HIDDEN, LAYERS, Recorder, Step, differences, layer_tensors
from extractor.capture import Capture, Chunk, Sink
from extractor.errors import EngineError

SLOT_ROWS, STEP_ROWS, NUM_SLOTS, NUM_STEPS = 8, 20, 7, 30
# Clock cycles: about a millisecond, so that the device always lags behind the engine's thread, and half a second.
LATE, VERY_LATE = 2_000_000, 1_000_000_000
# Kimi-K2.5's hidden size. A step takes 9 slots of 8.6 MB, twice as many as there are staging buffers, and a copy out of
# one takes 20 times as long as the gather into it: a gather that does not wait for the copy overwrites rows.
LARGE_HIDDEN, LARGE_SLOT_ROWS, LARGE_ROWS, LARGE_SLOTS = 7168, 200, 1700, 10


def small(gpu: Device, sink: Sink, dtype: torch.dtype = torch.float16) -> Capture:
    return gpu.open(sink, HIDDEN, dtype, SLOT_ROWS, NUM_SLOTS)


def persistent_layers(gpu: Device) -> list[Tensor]:
    return [torch.zeros(STEP_ROWS, HIDDEN, dtype=torch.bfloat16, device=gpu.device) for _ in range(LAYERS)]


def moved(states: list[Tensor], gpu: Device) -> list[Tensor]:
    return [state.contiguous().to(gpu.device) for state in states]


def chunks_of_step(number: int) -> list[Chunk]:
    """17 rows, so three slots: [3, 5 of 11], [6 of 11, 2], [1]; another order and other rows each time."""
    chunks = [Chunk("a", number, number % 5, 3), Chunk("b", 0, 9, 11), Chunk("c", 7, 1, 2), Chunk("d", 0, 19, 1)]
    turn = number % 4
    return [*chunks[turn:], *chunks[:turn]]


def run_engine(gpu: Device, capture: Capture, forward: Callable[[list[Tensor]], list[Tensor]]) -> list[Step]:
    """All inputs are on the device beforehand: a copy from ordinary memory would wait for what is enqueued there."""
    steps = [(layer_tensors(STEP_ROWS, number), chunks_of_step(number)) for number in range(NUM_STEPS)]
    inputs = [moved(states, gpu) for states, _ in steps]
    for on_device, (_, chunks) in zip(inputs, steps, strict=True):
        capture.step(forward(on_device), chunks)
    capture.drain()
    return steps


def copy_all(to: list[Tensor], sources: list[Tensor]) -> None:
    for target, source in zip(to, sources, strict=True):
        target.copy_(source)


def delivered(gpu: Device, forward: Callable[[list[Tensor]], list[Tensor]], dtype: torch.dtype) -> list[str]:
    """What is wrong after a run whose layer tensors `forward` enqueues from each step's states on the device."""
    sink = Recorder()
    with closing(small(gpu, sink, dtype)) as capture:
        steps = run_engine(gpu, capture, forward)
        late = capture.stats.copy_wait_seconds > 0
    wrong = differences(sink.written, steps, dtype, SLOT_ROWS)
    return (
        wrong if late else [*wrong, "the writer never waited for a copy: the device was not late, so order is unproven"]
    )


def reused(gpu: Device, dtype: torch.dtype = torch.float16) -> list[str]:
    """The device lags behind, and each step overwrites the layer tensors of the one before."""
    layers = persistent_layers(gpu)

    def forward(states: list[Tensor]) -> list[Tensor]:
        gpu.sleep(LATE)
        gpu.enqueue(lambda: copy_all(layers, states))
        return layers

    return delivered(gpu, forward, dtype)


def replayed(gpu: Device) -> list[str]:
    """The forward pass is a CUDA graph, which writes the same tensors each time."""
    inputs, layers = persistent_layers(gpu), persistent_layers(gpu)
    replay = gpu.recorded(lambda: copy_all(layers, inputs))

    def forward(states: list[Tensor]) -> list[Tensor]:
        gpu.sleep(LATE)
        gpu.enqueue(lambda: copy_all(inputs, states))
        replay()
        return layers

    return delivered(gpu, forward, torch.float16)


def large(gpu: Device) -> list[str]:
    """One step of full-sized rows that takes many slots, its tensors overwritten as soon as it has returned."""
    states = layer_tensors(LARGE_ROWS, 1, LARGE_HIDDEN)
    layers = moved(states, gpu)
    half = LARGE_ROWS // 2
    chunks = [Chunk("a", 0, half, LARGE_ROWS - half), Chunk("b", 5, 0, half)]
    sink = Recorder()
    with closing(gpu.open(sink, LARGE_HIDDEN, torch.float16, LARGE_SLOT_ROWS, LARGE_SLOTS)) as capture:
        gpu.sleep(LATE)
        capture.step(layers, chunks)
        gpu.enqueue(lambda: [layer.fill_(-1) for layer in layers])
        capture.drain()
    return differences(sink.written, [(states, chunks)], torch.float16, LARGE_SLOT_ROWS)


def returns_early(gpu: Device) -> list[str]:
    """A step enqueues and returns; nothing in it waits for the device."""
    layers, chunks = persistent_layers(gpu), [Chunk("a", 0, 0, 4)]
    with closing(small(gpu, Recorder())) as capture:
        capture.step(layers, chunks)
        capture.drain()
        gpu.sleep(VERY_LATE)
        capture.step(layers, chunks)
        still_busy = gpu.busy()
        capture.drain()
    return [] if still_busy else ["the step returned only when the device was done"]


def pinned(gpu: Device) -> list[str]:
    """Every slot is pinned from open to close, not longer."""
    capture = small(gpu, Recorder())
    slots = capture._transfer.slots
    before = [gpu.pinned(slot.buffer) for slot in slots]
    capture.close()
    after = [gpu.pinned(slot.buffer) for slot in slots]
    wrong = [] if all(before) else [f"{before.count(False)} of {len(before)} open slots are not pinned"]
    return [*wrong, f"{after.count(True)} slots are still pinned after close"] if any(after) else wrong


def refused(gpu: Device) -> list[str]:
    """A step while a CUDA graph is recorded would become part of the graph."""
    layers = persistent_layers(gpu)
    with closing(small(gpu, Recorder())) as capture:
        try:
            gpu.inside_a_graph(lambda: capture.step(layers, [Chunk("a", 0, 0, 4)]))
        except EngineError as error:
            return [] if "CUDA graph" in str(error) else [f"refused for another reason: {error}"]
    return ["a step inside the recording of a CUDA graph was accepted"]


def on_a_new_thread(gpu: Device) -> list[str]:
    """The engine's thread may open its capture before it has made any call to the device."""
    wrong: list[str] = []

    def engine() -> None:
        try:
            small(gpu, Recorder()).close()
            wrong.extend(reused(gpu))
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=engine)
    thread.start()
    thread.join()
    return wrong


SCENARIOS: Mapping[str, Callable[[Device], list[str]]] = {
    "a late device and reused tensors": reused,
    "the same, stored as bf16": lambda gpu: reused(gpu, torch.bfloat16),
    "a replayed CUDA graph": replayed,
    "full-sized rows over many slots": large,
    "a step returns before the device is done": returns_early,
    "slots are pinned": pinned,
    "a step inside a graph is refused": refused,
    "opened and run on a new thread": on_a_new_thread,
}
