"""The bytes of one ring slot, the same on the device and on the host.

    [ counts, used from the end | states, used from the start | index, used from the start ]

Chunks take the last places of the counts, so that used counts and used states are neighbours and one copy moves both.

R rows of a slot, P chunks in it, L layers, H hidden size.
"""

from __future__ import annotations

import functools
import mmap
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

STORED_DTYPES = {torch.float16: np.dtype(np.float16), torch.bfloat16: np.dtype(ml_dtypes.bfloat16)}
# Whole device memory transactions, and more than any vector store needs.
_ALIGNMENT = 512
_COUNT_BYTES = 4 * 8
_INDEX_BYTES = 2 * 4


@dataclass(frozen=True)
class SlotLayout:
    """Where counts, states and the index of at most `rows` rows (and as many chunks) lie in a buffer of `nbytes`.

    All in bytes; computed once, as every step asks for them.
    """

    rows: int
    num_layers: int
    hidden_size: int
    dtype: torch.dtype

    @functools.cached_property
    def row_bytes(self) -> int:
        return self.num_layers * self.hidden_size * 2

    @functools.cached_property
    def states_start(self) -> int:
        return _round_up(self.counts_bytes(self.rows), _ALIGNMENT)

    @functools.cached_property
    def index_start(self) -> int:
        return _round_up(self.states_start + self.rows * self.row_bytes, _ALIGNMENT)

    @functools.cached_property
    def nbytes(self) -> int:
        """Whole pages: slots are registered one by one, and a page can be registered only once."""
        return _round_up(self.index_start + self.index_bytes, mmap.PAGESIZE)

    @functools.cached_property
    def index_bytes(self) -> int:
        return self.rows * _INDEX_BYTES

    def counts_bytes(self, chunks: int) -> int:
        """Of the counts of `chunks` chunks, which end where the states start."""
        return chunks * self.num_layers * _COUNT_BYTES

    def used(self, rows: int, chunks: int) -> slice:
        """The bytes that hold the counts of `chunks` chunks and the states of `rows` rows."""
        return slice(self.states_start - self.counts_bytes(chunks), self.states_start + rows * self.row_bytes)


class Slot:
    """Views of one buffer, made once.

    counts [R, L, 4] int64; the counts of chunk c of P are counts[R - P + c]
    states [R, L, H] float16 or bfloat16
    index  [2, R] int32: source row and place in counts of each row (see `chunk.write_index`)
    """

    def __init__(self, layout: SlotLayout, buffer: Tensor) -> None:
        self.buffer = buffer
        self.counts = self._counts(layout)
        self.states = self._states(layout)
        self.index = self._index(layout)

    def _counts(self, layout: SlotLayout) -> Tensor:
        end = layout.states_start
        counts = self.buffer[end - layout.counts_bytes(layout.rows) : end].view(torch.int64)
        return counts.view(layout.rows, layout.num_layers, 4)

    def _states(self, layout: SlotLayout) -> Tensor:
        start = layout.states_start
        states = self.buffer[start : start + layout.rows * layout.row_bytes].view(layout.dtype)
        return states.view(layout.rows, layout.num_layers, layout.hidden_size)

    def _index(self, layout: SlotLayout) -> Tensor:
        start = layout.index_start
        return self.buffer[start : start + layout.index_bytes].view(torch.int32).view(2, layout.rows)


class HostSlot(Slot):
    """A slot in host memory, also seen through NumPy, which has no bfloat16 of its own."""

    def __init__(self, layout: SlotLayout, buffer: Tensor) -> None:
        super().__init__(layout, buffer)
        start = layout.states_start
        states = buffer.numpy()[start : start + layout.rows * layout.row_bytes].view(STORED_DTYPES[layout.dtype])
        self.states_array = states.reshape(layout.rows, layout.num_layers, layout.hidden_size)
        self.counts_array = self.counts.numpy()
        self.index_array = self.index.numpy()


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
