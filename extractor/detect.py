"""Detectors that see every captured row: what silent bugs of an engine leave behind, found while it is being written.

    nan, inf    such elements are in the row
    saturated   finite elements beyond the stored dtype's range were clipped (a property of some models)
    constant    all elements of a row are one value: zeros of a buffer that nobody filled, or a fill pattern
    repeated    a row has the bits of a row of another token: a stale buffer, a swapped request (see recent_rows)
    jump        a sample's typical magnitude in a layer is 100 times that of the samples before it, or a hundredth

They report and change nothing. n rows of one chunk, L layers, H hidden size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from extractor.chunk import Chunk
from extractor.probe import PROBE, Bits, constant_rows, fingerprints, first_element, probe_rows, sum_exponents
from extractor.recent_rows import RecentRows

# Two decades, in octaves. Samples of SmolLM2-135M, 300 tokens of chat, code and logs each, differ by a quarter octave.
JUMP_OCTAVES = 6.64
# A lone outlier can't move the median of so many samples; a lasting change is reported for half of them.
HISTORY = 15
# Per layer, at 20 bytes each: about eight slots of 8,192 rows, because a stale row is a recent one.
REMEMBERED_ROWS = 1 << 16

_COUNTED = ("saturated", "inf", "nan")  # the first columns of counts


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one layer of one chunk (jump: of one sample), with the first place."""

    kind: str  # of the module's list
    sample_id: str
    position: int  # of the token, in the sample
    layer_id: int
    value: float  # saturated: largest |x| before rounding; constant: the value; jump: the factor; else NaN
    count: int  # elements (saturated, inf, nan), rows (constant, repeated) or tokens after the first (jump)
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: sample {self.sample_id!r}, token {self.position}, layer {self.layer_id}: {self.detail}"


class Detectors:
    """All detectors of one writer: `check` the chunks of a sample in order, then `finish` the sample."""

    def __init__(self, layer_ids: Sequence[int]) -> None:
        self._layer_ids = tuple(layer_ids)
        self._recent = [RecentRows(REMEMBERED_ROWS) for _ in layer_ids]
        self._history = [deque[float](maxlen=HISTORY) for _ in layer_ids]
        self._exponents: dict[str, tuple[NDArray[np.int64], int]] = {}  # of unfinished samples: sums [L], rows

    def check(
        self, chunk: Chunk, rows: np.ndarray, counts: NDArray[np.int64], token_ids: NDArray[np.int32]
    ) -> list[Finding]:
        """Look at the rows of one chunk.

        rows       [n, L, H] float16 or bfloat16, as stored
        counts     [L, 4] of these rows: saturated, inf, NaN, max |x| as fp32 bits
        token_ids  [n] int32, the rows' own tokens
        """
        bits = rows.view(np.uint16)
        probe = probe_rows(bits)
        constant = constant_rows(bits, probe)
        self._add_exponents(chunk, probe, rows.dtype)
        found = [*_counted(bits, counts, rows.dtype), *_constant(rows, constant)]
        found += self._repeated(chunk, fingerprints(probe), constant, token_ids)
        return [
            Finding(kind, chunk.sample_id, chunk.position + row, self._layer_ids[layer], value, count, detail)
            for kind, row, layer, value, count, detail in found
        ]

    def finish(self, sample_id: str) -> list[Finding]:
        """Compare a complete sample's magnitudes with those of the samples before it."""
        sums, rows = self._exponents.pop(sample_id, (np.zeros(0), 0))
        findings: list[Finding] = []
        if not rows:  # the first token alone
            return findings
        for layer, octaves in enumerate(sums / (rows * PROBE)):
            history = self._history[layer]
            change = octaves - float(np.median(history)) if history else 0.0
            if abs(change) > JUMP_OCTAVES:
                detail = f"its typical magnitude is {2.0**change:.3g} times that of the {len(history)} samples before"
                findings.append(Finding("jump", sample_id, 0, self._layer_ids[layer], 2.0**change, rows, detail))
            history.append(octaves)
        return findings

    def _repeated(
        self, chunk: Chunk, prints: NDArray[np.uint64], constant: NDArray[np.bool_], token_ids: NDArray[np.int32]
    ) -> Iterator[_Found]:
        for layer, recent in enumerate(self._recent):
            rows = np.flatnonzero(~constant[:, layer])  # the others are reported already
            match = recent.enter(chunk.sample_id, chunk.position + rows, prints[rows, layer], token_ids[rows])
            if match:
                detail = (
                    f"{match.count} of {chunk.count} rows have the bits of a row of another token, "
                    f"the first those of sample {match.other_sample!r}, token {match.other_position}"
                )
                yield "repeated", int(rows[match.row]), layer, float("nan"), match.count, detail

    def _add_exponents(self, chunk: Chunk, probe: Bits, dtype: np.dtype[np.generic]) -> None:
        before, rows = self._exponents.get(chunk.sample_id, (np.zeros(len(self._layer_ids), np.int64), 0))
        if chunk.position == 0:
            # An engine computes a preempted sample once more from its start. The first token itself is left out: it is
            # where models put their outliers (22 times the others in layer 15 of SmolLM2-135M).
            before, rows, probe = np.zeros_like(before), 0, probe[1:]
        self._exponents[chunk.sample_id] = (before + sum_exponents(probe, dtype), rows + len(probe))


_Found = tuple[str, int, int, float, int, str]  # kind, row, layer, value, count, detail


def _counted(bits: Bits, counts: NDArray[np.int64], dtype: np.dtype[np.generic]) -> Iterator[_Found]:
    """What the gather has counted; rows are searched only for the first place."""
    for layer, column in np.argwhere(counts[:, : len(_COUNTED)]):
        kind, count = _COUNTED[column], int(counts[layer, column])
        row, channel = first_element(bits[:, layer], kind, dtype)
        detail, value = f"{count} {kind} elements, the first in channel {channel}", float("nan")
        if kind == "saturated":
            value = float(counts[layer, 3:].astype(np.int32).view(np.float32)[0])
            detail += f", the largest |x| is {value:.6g}"
        yield kind, row, int(layer), value, count, detail


def _constant(rows: np.ndarray, constant: NDArray[np.bool_]) -> Iterator[_Found]:
    for layer in np.flatnonzero(constant.any(axis=0)):
        found = np.flatnonzero(constant[:, layer])
        value = float(rows[found[0], layer, 0])
        detail = f"{len(found)} of {len(rows)} rows hold one value only, the first {value}"
        yield "constant", int(found[0]), int(layer), value, len(found), detail
