"""The ring on the CPU: each chunk with its own values and counts, in order, whatever the sizes."""

from __future__ import annotations

from collections import deque

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ring_cases import HIDDEN, LAYERS, Recorder, assert_written, layer_tensors, open_capture

from extractor import capture as capture_module
from extractor.capture import Chunk
from extractor.chunk import split, write_index
from extractor.ring import Ring
from extractor.transfer import HostTransfer


@pytest.mark.parametrize(("dtype", "seen"), [(torch.float16, np.float16), (torch.bfloat16, ml_dtypes.bfloat16)])
def test_chunks_arrive_in_order_with_their_values_and_counts(dtype, seen) -> None:
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
    capture = open_capture(sink, slot_rows, num_slots)
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


FAULTS = {
    "source rows off by one": lambda m: m.setattr(capture_module, "write_index", _off_by_one),
    "slots published in the wrong order": lambda m: m.setattr(Ring, "publish", _publish_first),
    "slot freed before it is written": lambda m: m.setattr(Ring, "_run", _run_late),
    "counts of the slot's last use kept": lambda m: m.setattr(HostTransfer, "_clear", lambda *_: None),
}


def _off_by_one(index: np.ndarray, chunks: list[Chunk]) -> int:
    rows = write_index(index, chunks)
    index[0, :rows] += 1
    return rows


def _publish_first(ring: Ring, slot: int, content: list[Chunk]) -> None:
    with ring._changed:
        ring._published.appendleft((slot, content))
        ring._unwritten += 1
        ring._changed.notify_all()


def _run_late(ring: Ring) -> None:
    held: deque[tuple[int, list[Chunk]]] = deque()
    while (published := ring._next()) is not None:
        held.append(published)
        ring._release(published[0])
        if len(held) > 3:
            ring._write(*held.popleft())
    for slot, content in held:
        ring._write(slot, content)


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_the_checker_rejects_a_faulty_ring(monkeypatch, fault) -> None:
    if fault:
        FAULTS[fault](monkeypatch)
    sink = Recorder()
    capture = open_capture(sink, num_slots=3)
    steps = [(layer_tensors(10, seed), [Chunk(f"{seed}", 0, 1, 3), Chunk(f"{seed}+", 0, 4, 5)]) for seed in range(9)]
    sink.gate.clear()  # until all slots are published, so that there is an order to get wrong
    for number, (layers, chunks) in enumerate(steps):
        if number == 3:
            sink.gate.set()
        capture.step(layers, chunks)
    capture.drain()
    capture.close()
    if fault:
        with pytest.raises(AssertionError):
            assert_written(sink, steps, torch.float16, 8)
    else:
        assert_written(sink, steps, torch.float16, 8)


def test_split_fills_slots_to_the_brim() -> None:
    parts = list(split([Chunk("a", 10, 0, 5), Chunk("b", 0, 7, 4)], 4))
    assert parts == [[Chunk("a", 10, 0, 4)], [Chunk("a", 14, 4, 1), Chunk("b", 0, 7, 3)], [Chunk("b", 3, 10, 1)]]


def test_index_names_rows_and_owners() -> None:
    index = np.full((2, 7), -9, dtype=np.int32)
    assert write_index(index, [Chunk("a", 0, 6, 2), Chunk("b", 0, 1, 3)]) == 5
    assert index.tolist() == [[6, 7, 1, 2, 3, -9, -9], [5, 5, 6, 6, 6, -9, -9]]
