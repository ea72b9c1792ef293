"""A capture on the CPU and a sink that can be held up or fail, shared by the ring's tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch

from extractor.bench import ring_rows
from extractor.bench.ring_rows import HIDDEN, LAYERS, Step, layer_tensors
from extractor.capture import Capture, Chunk

__all__ = ["HIDDEN", "LAYERS", "WAIT", "Recorder", "Step", "assert_written", "layer_tensors", "open_capture"]

WAIT = 20.0  # seconds for what must happen: a test that would hang fails instead


class Recorder(ring_rows.Recorder):
    """Keeps a copy of everything; `gate` lets a test hold the writer, `fail_at` makes the n-th write raise."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.fail_at = fail_at

    def write(self, chunk: Chunk, rows: np.ndarray, counts: np.ndarray) -> None:
        self.entered.set()
        assert self.gate.wait(WAIT)
        if len(self.written) == self.fail_at:
            raise OSError(28, "No space left on device")
        super().write(chunk, rows, counts)


def open_capture(sink: Recorder, slot_rows: int = 8, num_slots: int = 3, dtype: torch.dtype = torch.float16) -> Capture:
    """A capture on the CPU. Its thread is a daemon, so a test that fails before close() leaves nothing that blocks."""
    sizes = {"num_layers": LAYERS, "hidden_size": HIDDEN, "slot_rows": slot_rows, "num_slots": num_slots}
    return Capture(dtype=dtype, device=torch.device("cpu"), sink=sink, **sizes)


def assert_written(sink: Recorder, steps: Sequence[Step], dtype: torch.dtype, slot_rows: int) -> None:
    """The sink got every chunk of every step, in order, with its own rows and counts, bit for bit."""
    assert ring_rows.differences(sink.written, steps, dtype, slot_rows) == []
