"""The areas of a slot: apart, aligned, and neighbours where one copy has to move both."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extractor.slot import HostSlot, Slot, SlotLayout

SIZES = {"rows": st.integers(1, 40), "num_layers": st.integers(1, 5), "hidden_size": st.integers(1, 70)}


def layout_and_slot(rows: int, num_layers: int, hidden_size: int) -> tuple[SlotLayout, Slot]:
    layout = SlotLayout(rows, num_layers, hidden_size, torch.float16)
    return layout, Slot(layout, torch.zeros(layout.nbytes, dtype=torch.uint8))


@settings(deadline=None)
@given(**SIZES)
def test_areas_are_apart_and_complete(rows: int, num_layers: int, hidden_size: int) -> None:
    layout, slot = layout_and_slot(rows, num_layers, hidden_size)
    assert slot.counts.shape == (rows, num_layers, 4)
    assert slot.states.shape == (rows, num_layers, hidden_size)
    assert slot.index.shape == (2, rows)
    slot.counts.fill_(1)
    slot.states.fill_(2)
    slot.index.fill_(3)
    assert slot.counts.eq(1).all()
    assert slot.states.eq(2).all()
    assert slot.index.eq(3).all()


@settings(deadline=None)
@given(**SIZES)
def test_areas_suit_vector_stores_and_slots_suit_the_driver(rows: int, num_layers: int, hidden_size: int) -> None:
    layout, slot = layout_and_slot(rows, num_layers, hidden_size)
    base = slot.buffer.data_ptr()
    assert (slot.states.data_ptr() - base) % 512 == 0
    assert (slot.index.data_ptr() - base) % 512 == 0
    assert layout.nbytes % mmap.PAGESIZE == 0
    # Exact: at most one page, two paddings beyond what is stored.
    assert layout.nbytes - rows * (num_layers * (hidden_size * 2 + 32) + 8) < mmap.PAGESIZE + 1024


@settings(deadline=None)
@given(data=st.data(), **SIZES)
def test_used_bytes_are_the_used_counts_and_states(data, rows: int, num_layers: int, hidden_size: int) -> None:
    layout, slot = layout_and_slot(rows, num_layers, hidden_size)
    used_rows = data.draw(st.integers(1, rows))
    chunks = data.draw(st.integers(1, used_rows))
    slot.counts[rows - chunks :] = -1
    slot.states.view(torch.int16)[:used_rows] = -1
    used = layout.used(used_rows, chunks)
    expected = torch.zeros_like(slot.buffer)
    expected[used] = 255
    assert torch.equal(slot.buffer, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numpy_sees_the_same_bytes(dtype: torch.dtype) -> None:
    layout = SlotLayout(3, 2, 5, dtype)
    slot = HostSlot(layout, torch.zeros(layout.nbytes, dtype=torch.uint8))
    slot.states.copy_(torch.arange(30).view(3, 2, 5))
    slot.index[1, 2] = 9
    assert np.array_equal(slot.states_array.astype(np.float32), np.arange(30, dtype=np.float32).reshape(3, 2, 5))
    assert slot.index_array[1, 2] == 9
    slot.counts_array[2, 1, 3] = 8
    assert slot.counts[2, 1, 3] == 8
