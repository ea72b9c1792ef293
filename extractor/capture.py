"""The captured rows of each engine step on their way to a sink: gather, ring, writer thread.

    step -> split over slots -> gather (and, on a GPU, copy) -> publish ... writer thread -> sink.write

Slots are allocated once. When the sink is slower than the engine, `step` waits for a slot, and the wait is measured.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from extractor.chunk import Chunk, check_chunks, split, write_index
from extractor.errors import EngineError, UsageError
from extractor.ring import Ring
from extractor.slot import STORED_DTYPES, SlotLayout
from extractor.transfer import Transfer, open_transfer

__all__ = ["Capture", "CaptureStats", "Chunk", "Sink"]

log = logging.getLogger(__name__)

# A writer inside one write, or a copy behind a hung collective, gets this long before close() gives up on it.
CLOSE_SECONDS = 10.0
# Memory that a device or a stuck writer may still use when its Capture is closed: never unmapped.
_abandoned: list[Transfer] = []


class Sink(Protocol):
    """Where rows go. Called on the writer thread, in step order, and within a step in the order of its chunks."""

    def write(self, chunk: Chunk, rows: np.ndarray, counts: np.ndarray) -> None:
        """Take the rows of `chunk`, which is a part of a chunk given to `step` where that one was split over slots.

        rows    [chunk.count, L, H] float16 or ml_dtypes.bfloat16, valid during this call only
        counts  [L, 4] int64 of these rows: saturated, inf, NaN, max |x| as fp32 bits; valid during this call only

        An exception stops the capture and comes out of the engine's next `step` or `drain`.
        """


@dataclass(frozen=True, slots=True)
class CaptureStats:
    """Totals so far. Rows and bytes are counted when they are enqueued; the seconds of writer and engine overlap."""

    steps: int
    rows: int
    bytes: int
    stalled_seconds: float  # the engine's thread waited for a free slot
    gather_seconds: float  # the engine's thread gathered (CPU) or enqueued (GPU)
    copy_wait_seconds: float  # the writer thread waited for a copy to arrive
    write_seconds: float  # the writer thread was inside the sink
    num_slots: int
    max_slots_used: int


class Capture:
    """Moves chosen rows of L layer tensors [N, H] to a sink. One engine thread calls it; the sink runs on its own.

    slot_rows   rows of one slot; a step takes as many slots as it needs
    num_slots   at least the engine's batches in flight + 2, or the engine waits for the sink where it need not

    Raises UsageError for sizes that can't be, EngineError where the memory can't be had or pinned.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        slot_rows: int,
        num_slots: int,
        sink: Sink,
    ) -> None:
        _require_positive(num_layers=num_layers, hidden_size=hidden_size, slot_rows=slot_rows, num_slots=num_slots)
        if dtype not in STORED_DTYPES:
            raise UsageError(f"dtype is {dtype}; the states can be stored as float16 or bfloat16")
        self._layout = SlotLayout(slot_rows, num_layers, hidden_size, dtype)
        self._sink = sink
        self._transfer = open_transfer(self._layout, num_slots, device)
        self._ring = Ring(num_slots, self._transfer.ready, self._write, self._transfer.begin)
        self._num_slots = num_slots
        self._steps = self._rows = 0
        self._gather_seconds = 0.0
        self._interrupted = False
        self._closed = False

    def step(self, layers: Sequence[Tensor], chunks: Sequence[Chunk]) -> None:
        """Capture the rows of `chunks` from this step's `layers`.

        layers  L tensors [N, H] bf16, fp16 or fp32 on the capture's device. On the CPU they may be overwritten when
                this returns; on a GPU by whatever is enqueued later on the current stream

        Waits while no slot is free. Raises the sink's error, and EngineError for chunks that do not fit the layers.
        """
        self._ring.check()
        self._check(layers, chunks)
        try:
            for parts in split(chunks, self._layout.rows):
                self._fill_slot(layers, parts)
        except BaseException:
            self._interrupted = True  # part of the step is missing: a later one would look complete
            raise
        self._steps += 1

    def check(self) -> None:
        """Raise the sink's error, if it has failed by now. `step` does it too; this is for steps without rows."""
        self._ring.check()

    def drain(self) -> None:
        """Wait until the sink has taken everything that `step` published. Raises the sink's error."""
        self._ring.drain()

    def close(self) -> bool:
        """Stop the writer thread and free the memory. What the sink has not begun to take is dropped: `drain` first.

        Returns whether the sink is at rest. False: it is stuck inside a `write`, and what it uses must stay open.
        """
        at_rest = self._ring.close(0.0 if self._closed else CLOSE_SECONDS)
        if self._closed:
            return at_rest
        self._closed = True
        if at_rest and self._device_is_done():
            self._transfer.close()
        else:
            log.warning(
                "the capture's writer or its copies did not stop within %.0f s; their memory stays", CLOSE_SECONDS
            )
            _abandoned.append(self._transfer)
        return at_rest

    @property
    def stats(self) -> CaptureStats:
        ring = self._ring
        return CaptureStats(
            steps=self._steps,
            rows=self._rows,
            bytes=self._rows * self._layout.row_bytes,
            stalled_seconds=ring.stalled_seconds,
            gather_seconds=self._gather_seconds,
            copy_wait_seconds=ring.copy_wait_seconds,
            write_seconds=ring.write_seconds,
            num_slots=self._num_slots,
            max_slots_used=ring.max_slots_used,
        )

    def _check(self, layers: Sequence[Tensor], chunks: Sequence[Chunk]) -> None:
        if self._interrupted:
            raise EngineError(
                "an earlier step of this capture failed half way; its rows are incomplete; open a new Capture"
            )
        if len(layers) != self._layout.num_layers:
            raise EngineError(
                f"the engine returned {len(layers)} layers, the capture was opened for {self._layout.num_layers}"
            )
        check_chunks(chunks, layers[0].shape[0])

    def _fill_slot(self, layers: Sequence[Tensor], parts: list[Chunk]) -> None:
        slot = self._ring.acquire()
        started = time.perf_counter()
        rows = write_index(self._transfer.slots[slot].index_array, parts)
        self._transfer.gather(slot, layers, rows, len(parts))
        self._gather_seconds += time.perf_counter() - started
        self._rows += rows
        self._ring.publish(slot, parts)

    def _write(self, slot: int, parts: list[Chunk]) -> None:
        host = self._transfer.slots[slot]
        counts = host.counts_array[self._layout.rows - len(parts) :]
        start = 0
        for number, part in enumerate(parts):
            self._sink.write(part, host.states_array[start : start + part.count], counts[number])
            start += part.count

    def _device_is_done(self) -> bool:
        """Waits for what is enqueued on the slots. A device that reports an error has to be taken as busy."""
        deadline = time.monotonic() + CLOSE_SECONDS
        with suppress(RuntimeError):
            done = self._transfer.fence()
            while time.monotonic() < deadline:
                if done():
                    return True
                time.sleep(0.001)
        return False


def _require_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"{name} is {size}; it must be at least 1")
