"""The ring on the CPU: values, order, back-pressure, and every way in which it can end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extractor import ops
from extractor.capture import Capture, Chunk
from extractor.chunk import split, write_index

LAYERS, HIDDEN = 3, 40
WAIT = 20.0  # for what must happen; a test that hangs fails here instead of blocking the run


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

    def sample(self, sample_id: str) -> np.ndarray:
        """All rows of one sample, placed by their positions; each position exactly once."""
        parts = sorted(((c.position, r) for c, r, _ in self.written if c.sample_id == sample_id), key=lambda p: p[0])
        end = 0
        for position, rows in parts:
            assert position == end
            end += len(rows)
        return np.concatenate([rows for _, rows in parts])


@pytest.fixture
def open_capture() -> Iterator[Callable[..., Capture]]:
    captures: list[Capture] = []

    def opened(sink: Recorder, slot_rows: int = 8, num_slots: int = 3, dtype: torch.dtype = torch.float16) -> Capture:
        sizes = {"num_layers": LAYERS, "hidden_size": HIDDEN, "slot_rows": slot_rows, "num_slots": num_slots}
        captures.append(Capture(dtype=dtype, device=torch.device("cpu"), sink=sink, **sizes))
        return captures[-1]

    yield opened
    for capture in captures:
        capture.close()


def layer_tensors(rows: int, seed: int = 0) -> list[torch.Tensor]:
    """bf16 states, each cut from a wider tensor, some beyond fp16, inf and NaN."""
    random = torch.Generator().manual_seed(seed)
    wide = torch.randn(LAYERS, rows, HIDDEN + 8, generator=random)
    wide[torch.rand(wide.shape, generator=random) < 0.01] = 70_000.0
    wide[torch.rand(wide.shape, generator=random) < 0.01] = float("inf")
    wide[torch.rand(wide.shape, generator=random) < 0.01] = float("nan")
    return [layer.bfloat16()[:, 4 : 4 + HIDDEN] for layer in wide]


def gathered(layers: list[torch.Tensor], chunk: Chunk, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """What the sink must get for `chunk`: bits [count, L, H] and counts [L, 4], by the operation without a ring."""
    rows = torch.arange(chunk.row, chunk.row + chunk.count, dtype=torch.int32)
    out = torch.empty(chunk.count, LAYERS, HIDDEN, dtype=dtype)
    counts = torch.zeros(LAYERS, 4, dtype=torch.int64)
    ops.gather_rows(layers, rows, out, counts)
    return out.view(torch.int16).numpy(), counts.numpy()


def assert_written(
    sink: Recorder, steps: list[tuple[list[torch.Tensor], list[Chunk]]], dtype: torch.dtype, slot_rows: int
) -> None:
    expected = [(layers, part) for layers, chunks in steps for parts in split(chunks, slot_rows) for part in parts]
    assert [chunk for chunk, _, _ in sink.written] == [part for _, part in expected]
    for (layers, part), (_, rows, counts) in zip(expected, sink.written, strict=True):
        bits, tally = gathered(layers, part, dtype)
        np.testing.assert_array_equal(rows.view(np.int16), bits)
        np.testing.assert_array_equal(counts, tally)


@pytest.mark.parametrize(("dtype", "seen"), [(torch.float16, np.float16), (torch.bfloat16, ml_dtypes.bfloat16)])
def test_chunks_arrive_in_order_with_their_values_and_counts(open_capture, dtype, seen) -> None:
    sink = Recorder()
    capture = open_capture(sink, dtype=dtype)
    steps = [
        (
            layer_tensors(30, 1),
            [Chunk("a", 0, 2, 20), Chunk("b", 5, 29, 1), Chunk("c", 0, 0, 2)],
        ),
        (layer_tensors(9, 2), [Chunk("a", 20, 0, 9)]),
    ]
    for layers, chunks in steps:
        capture.step(layers, chunks)
    capture.drain()
    assert_written(sink, steps, dtype, 8)
    assert sink.written[0][1].dtype == seen
    assert sum(counts[:, :3].sum() for _, _, counts in sink.written) > 0  # else the counts were compared with nothing


@settings(deadline=None, max_examples=40)
@given(
    steps=st.lists(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 12)), max_size=5), max_size=5),
    slot_rows=st.integers(1, 13),
    num_slots=st.integers(1, 4),
)
def test_any_chunks_through_any_ring(steps: list[list[tuple[int, int]]], slot_rows: int, num_slots: int) -> None:
    """Every ring size, one slot included, wraps around many times and gives each chunk its own rows."""
    sink, done = Recorder(), []
    sizes = {"num_layers": LAYERS, "hidden_size": HIDDEN, "slot_rows": slot_rows, "num_slots": num_slots}
    capture = Capture(dtype=torch.float16, device=torch.device("cpu"), sink=sink, **sizes)
    for number, shapes in enumerate(steps):
        chunks = [Chunk(f"{number}-{place}", 3, row, count) for place, (row, count) in enumerate(shapes)]
        layers = layer_tensors(24, number)
        capture.step(layers, chunks)
        done.append(([layer.clone() for layer in layers], chunks))
        for layer in layers:
            layer.fill_(-1)  # the next step's states: what was captured must not move
    capture.drain()
    capture.close()
    assert_written(sink, done, torch.float16, slot_rows)
    assert capture.stats.rows == sum(count for shapes in steps for _, count in shapes)
    assert capture.stats.bytes == capture.stats.rows * LAYERS * HIDDEN * 2
    assert capture.stats.max_slots_used <= num_slots


def test_split_fills_slots_to_the_brim() -> None:
    parts = list(split([Chunk("a", 10, 0, 5), Chunk("b", 0, 7, 4)], 4))
    assert parts == [[Chunk("a", 10, 0, 4)], [Chunk("a", 14, 4, 1), Chunk("b", 0, 7, 3)], [Chunk("b", 3, 10, 1)]]


def test_index_names_rows_and_owners() -> None:
    index = np.full(12, -9, dtype=np.int32)
    assert write_index(index, [Chunk("a", 0, 6, 2), Chunk("b", 0, 1, 3)]) == 5
    assert index.tolist() == [6, 7, 1, 2, 3, 0, 0, 1, 1, 1, -9, -9]
