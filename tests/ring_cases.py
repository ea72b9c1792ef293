"""Inputs, a recording sink and the checker for the ring, shared by its tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch

from extractor import ops
from extractor.capture import Capture, Chunk
from extractor.chunk import split

LAYERS, HIDDEN = 3, 40
WAIT = 20.0  # seconds for what must happen: a test that would hang fails instead

Step = tuple[list[torch.Tensor], Sequence[Chunk]]


class Recorder:
    """Keeps a copy of everything; `gate` lets a test hold the writer, `fail_at` makes the n-th write raise."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.written: list[tuple[Chunk, np.ndarray, np.ndarray]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.fail_at = fail_at

    def write(self, chunk: Chunk, rows: np.ndarray, counts: np.ndarray) -> None:
        self.entered.set()
        assert self.gate.wait(WAIT)
        if len(self.written) == self.fail_at:
            raise OSError(28, "No space left on device")
        self.written.append((chunk, rows.copy(), counts.copy()))


def open_capture(sink: Recorder, slot_rows: int = 8, num_slots: int = 3, dtype: torch.dtype = torch.float16) -> Capture:
    """A capture on the CPU. Its thread is a daemon, so a test that fails before close() leaves nothing that blocks."""
    sizes = {"num_layers": LAYERS, "hidden_size": HIDDEN, "slot_rows": slot_rows, "num_slots": num_slots}
    return Capture(dtype=dtype, device=torch.device("cpu"), sink=sink, **sizes)


def layer_tensors(rows: int, seed: int = 0) -> list[torch.Tensor]:
    """bf16 states, each cut from a wider tensor, some beyond fp16, inf and NaN."""
    random = torch.Generator().manual_seed(seed)
    wide = torch.randn(LAYERS, rows, HIDDEN + 8, generator=random)
    for value in (70_000.0, float("inf"), float("nan")):
        wide[torch.rand(wide.shape, generator=random) < 0.01] = value
    return [layer.bfloat16()[:, 4 : 4 + HIDDEN] for layer in wide]


def gathered(layers: Sequence[torch.Tensor], chunk: Chunk, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """What the sink must get for `chunk`: bits [count, L, H] and counts [L, 4], by the operation without a ring."""
    rows = torch.arange(chunk.row, chunk.row + chunk.count, dtype=torch.int32)
    out = torch.empty(chunk.count, LAYERS, HIDDEN, dtype=dtype)
    counts = torch.zeros(LAYERS, 4, dtype=torch.int64)
    ops.gather_rows(layers, rows, out, counts)
    return out.view(torch.int16).numpy(), counts.numpy()


def assert_written(sink: Recorder, steps: Sequence[Step], dtype: torch.dtype, slot_rows: int) -> None:
    """The sink got every chunk of every step, in order, with its own rows and counts, bit for bit."""
    expected = [(layers, part) for layers, chunks in steps for parts in split(chunks, slot_rows) for part in parts]
    assert [chunk for chunk, _, _ in sink.written] == [part for _, part in expected]
    for (layers, part), (_, rows, counts) in zip(expected, sink.written, strict=True):
        bits, tally = gathered(layers, part, dtype)
        np.testing.assert_array_equal(rows.view(np.int16), bits)
        np.testing.assert_array_equal(counts, tally)
