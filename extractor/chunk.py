"""A chunk: consecutive rows of one sample inside one engine step."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from extractor.errors import EngineError


@dataclass(frozen=True, slots=True)
class Chunk:
    """Which rows of a step belong to which part of which sample."""

    sample_id: str
    position: int  # in the sample, of the first row
    row: int  # in the step's layer tensors, of the first row
    count: int


def check_chunks(chunks: Sequence[Chunk], num_rows: int) -> None:
    """Raise EngineError for a chunk that is not inside a step of `num_rows` rows."""
    for chunk in chunks:
        if chunk.count < 1 or chunk.row < 0 or chunk.row + chunk.count > num_rows:
            raise EngineError(
                f"sample {chunk.sample_id!r}, position {chunk.position}: {chunk.count} rows from row {chunk.row} on, "
                f"in a step of {num_rows} rows; the engine's bookkeeping does not fit its tensors"
            )


def split(chunks: Sequence[Chunk], slot_rows: int) -> Iterator[list[Chunk]]:
    """Fill slots of `slot_rows` rows to the brim, in order: small chunks share a slot, a large one is split."""
    if 0 < sum(chunk.count for chunk in chunks) <= slot_rows:  # most steps
        yield list(chunks)
        return
    parts: list[Chunk] = []
    room = slot_rows
    for chunk in chunks:
        done = 0
        while done < chunk.count:
            count = min(room, chunk.count - done)
            whole = count == chunk.count
            parts.append(chunk if whole else Chunk(chunk.sample_id, chunk.position + done, chunk.row + done, count))
            done += count
            room -= count
            if not room:
                yield parts
                parts, room = [], slot_rows
    if parts:
        yield parts


def write_index(index: NDArray[np.int32], chunks: Sequence[Chunk]) -> int:
    """Write what `ops.gather_rows` takes for the rows of `chunks`; return how many rows they have.

    index  [2, size] int32, filled from the left: the row in the step's tensors; its owner, which is size - P + c for
           chunk c of P (see `slot`)
    """
    size = index.shape[1]
    numbers = _numbers(size)
    counts = [chunk.count for chunk in chunks]
    ends = list(accumulate(counts))
    offsets = [chunk.row + chunk.count - end for chunk, end in zip(chunks, ends, strict=True)]
    each, rows = np.array(counts), ends[-1]
    index[0, :rows] = numbers[:rows] + np.array(offsets, dtype=np.int32).repeat(each)
    index[1, :rows] = numbers[size - len(chunks) :].repeat(each)
    return rows


@functools.lru_cache(maxsize=8)
def _numbers(size: int) -> NDArray[np.int32]:
    """0 .. size-1, made once for each size of slot."""
    return np.arange(size, dtype=np.int32)
