"""Steps for the ring, a sink that keeps what it gets, and what it must have got: for the tests and for a GPU alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from extractor.chunk import Chunk, split
from extractor.kernels.gather_ref import gather_rows_ref

LAYERS, HIDDEN = 3, 40

Step = tuple[list[torch.Tensor], Sequence[Chunk]]
Written = tuple[Chunk, np.ndarray, np.ndarray]


class Recorder:
    """Keeps a copy of everything."""

    def __init__(self) -> None:
        self.written: list[Written] = []

    def write(self, chunk: Chunk, rows: np.ndarray, counts: np.ndarray) -> None:
        self.written.append((chunk, rows.copy(), counts.copy()))


def layer_tensors(rows: int, seed: int = 0, hidden: int = HIDDEN) -> list[torch.Tensor]:
    """bf16 states, each cut from a wider tensor, some beyond fp16, inf and NaN."""
    random = torch.Generator().manual_seed(seed)
    wide = torch.randn(LAYERS, rows, hidden + 8, generator=random)
    for value in (70_000.0, float("inf"), float("nan")):
        wide[torch.rand(wide.shape, generator=random) < 0.01] = value
    return [layer.bfloat16()[:, 4 : 4 + hidden] for layer in wide]


def gathered(layers: Sequence[torch.Tensor], chunk: Chunk, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """What the sink must get for `chunk`: bits [count, L, H] and counts [L, 4], by the definition on the CPU."""
    rows = torch.arange(chunk.row, chunk.row + chunk.count, dtype=torch.int32)
    out = torch.empty(chunk.count, len(layers), layers[0].shape[1], dtype=dtype)
    counts = torch.zeros(len(layers), 4, dtype=torch.int64)
    gather_rows_ref(layers, rows, out, counts)
    return out.view(torch.int16).numpy(), counts.numpy()


def differences(written: Sequence[Written], steps: Sequence[Step], dtype: torch.dtype, slot_rows: int) -> list[str]:
    """Where the sink did not get every chunk of every step, in order, with its own rows and counts, bit for bit."""
    expected = [(layers, part) for layers, chunks in steps for parts in split(chunks, slot_rows) for part in parts]
    got = [chunk for chunk, _, _ in written]
    if got != [part for _, part in expected]:
        place = next((n for n, (a, (_, b)) in enumerate(zip(got, expected, strict=False)) if a != b), len(got))
        return [f"{len(got)} chunks arrived, {len(expected)} were given; number {place} is the first that differs"]
    found = []
    for (layers, part), (_, rows, counts) in zip(expected, written, strict=True):
        bits, tally = gathered(layers, part, dtype)
        wrong = np.argwhere(rows.view(np.int16) != bits)
        if wrong.size:
            found.append(f"{part}: {len(wrong)} values differ, the first at [row, layer, column] {wrong[0].tolist()}")
        if not np.array_equal(counts, tally):
            found.append(f"{part}: counts are {counts.tolist()}, not {tally.tolist()}")
    return found
