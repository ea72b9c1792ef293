"""Detectors that see every captured row: what silent bugs of an engine leave behind, found while it is being written.

    nan, inf    such elements are in the row
    saturated   finite elements beyond the stored dtype's range were clipped (a property of some models)
    constant    all elements of a row are one value: zeros of a buffer that nobody filled, or a fill pattern
    repeated    a row has the bits of a row of another token: a stale buffer, a swapped request (see recent_rows)
    jump        a sample's typical magnitude in a layer is 100 times that of the samples before it, or a hundredth

They report and change nothing. n rows of one chunk, L layers, H hidden size.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extractor.chunk import Chunk
from extractor.probe import PROBE, Bits, constant_rows, fingerprints, first_element, probe_rows, sum_exponents
from extractor.recent_rows import RecentRows

# Two decades, in octaves. Samples of SmolLM2-135M, 300 tokens of chat, code and logs each, differ by a quarter octave.
JUMP_OCTAVES = 6.64
# A lone outlier can't move the median of so many samples; a lasting change is reported for half of them.
HISTORY = 15
# Per layer, at 24 bytes each: about eight slots of 8,192 rows, because a stale row is a recent one.
REMEMBERED_ROWS = 1 << 16

_COUNTED = ("saturated", "inf", "nan")  # the first columns of counts


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one layer of one chunk or sample: the first place, and how much there is."""

    kind: str  # of the module's list
    sample_id: str
    position: int  # of the first such token, in the sample
    layer_id: int
    count: int  # elements (saturated, inf, nan), rows (constant, repeated) or tokens after the first (jump)
    value: float  # saturated: largest |x| before rounding; constant: the first's value; jump: the factor; else NaN
    detail: str  # about the first place

    def __str__(self) -> str:
        where = f"sample {self.sample_id!r}, layer {self.layer_id}, from token {self.position} on"
        return f"{self.kind}: {where}: {self.count} ({self.detail})"

    def merged(self, later: Finding) -> Finding:
        """This one and a later one of the same kind, sample and layer."""
        value = max(self.value, later.value) if self.kind == "saturated" else self.value
        return replace(self, count=self.count + later.count, value=value)

    def as_json(self) -> dict[str, Any]:
        """Its fields; `value` is None where it has no meaning or JSON no word for it."""
        return {**asdict(self), "value": self.value if math.isfinite(self.value) else None}


@dataclass(slots=True)
class _Sample:
    """An unfinished sample: exponents summed by layer [L] over `rows` rows, findings by kind and layer."""

    exponents: NDArray[np.int64]
    rows: int = 0
    findings: dict[tuple[str, int], Finding] = field(default_factory=dict)


class Detectors:
    """All detectors of one writer: `check` the chunks of a sample in order, then `finish` the sample."""

    def __init__(self, layer_ids: Sequence[int]) -> None:
        self._layer_ids = tuple(layer_ids)
        self._recent = [RecentRows(REMEMBERED_ROWS) for _ in layer_ids]
        self._history = [deque[float](maxlen=HISTORY) for _ in layer_ids]
        self._samples: dict[str, _Sample] = {}

    def check(
        self, chunk: Chunk, rows: np.ndarray, counts: NDArray[np.int64], token_ids: NDArray[np.int32]
    ) -> list[Finding]:
        """Look at the rows of one chunk; position 0 starts its sample, once more if it was preempted.

        rows       [n, L, H] float16 or bfloat16, as stored
        counts     [L, 4] of these rows: saturated, inf, NaN, max |x| as fp32 bits
        token_ids  [n] int32, the rows' own tokens
        """
        bits = rows.view(np.uint16)
        probe = probe_rows(bits)
        constant = constant_rows(bits, probe)
        found = [*_counted(bits, counts, rows.dtype), *_constant(rows, constant)]
        found += self._repeated(chunk, fingerprints(probe), constant, token_ids)
        findings = [
            Finding(kind, chunk.sample_id, chunk.position + row, self._layer_ids[layer], count, value, detail)
            for kind, row, layer, count, value, detail in found
        ]
        self._remember(chunk, probe, rows.dtype, findings)
        return findings

    def finish(self, sample_id: str) -> list[Finding]:
        """All findings of a complete sample, one for each kind and layer, and `jump` beside the samples before it."""
        sample = self._samples.pop(sample_id, None)
        return [] if sample is None else [*sample.findings.values(), *self._jumps(sample_id, sample)]

    def _jumps(self, sample_id: str, sample: _Sample) -> Iterator[Finding]:
        if not sample.rows:  # the first token alone
            return
        for layer, octaves in enumerate(sample.exponents / (sample.rows * PROBE)):
            history = self._history[layer]
            change = float(octaves - np.median(history)) if history else 0.0
            if abs(change) > JUMP_OCTAVES:
                factor, layer_id = 2.0**change, self._layer_ids[layer]
                detail = f"{factor:.3g} times the typical magnitude of the {len(history)} samples before"
                yield Finding("jump", sample_id, 0, layer_id, sample.rows, factor, detail)
            history.append(octaves)

    def _repeated(
        self, chunk: Chunk, prints: NDArray[np.uint64], constant: NDArray[np.bool_], token_ids: NDArray[np.int32]
    ) -> Iterator[_Found]:
        for layer, recent in enumerate(self._recent):
            rows = np.flatnonzero(~constant[:, layer])  # the others are reported already
            match = recent.enter(chunk.sample_id, chunk.position + rows, prints[rows, layer], token_ids[rows])
            if match:
                detail = f"the bits of sample {match.other_sample!r}, token {match.other_position}"
                yield "repeated", int(rows[match.row]), layer, match.count, math.nan, detail

    def _remember(self, chunk: Chunk, probe: Bits, dtype: np.dtype[np.generic], findings: list[Finding]) -> None:
        if chunk.position == 0 or chunk.sample_id not in self._samples:
            self._samples[chunk.sample_id] = _Sample(np.zeros(len(self._layer_ids), np.int64))
        if chunk.position == 0:  # models put their outliers there: 22 times the others in layer 15 of SmolLM2-135M
            probe = probe[1:]
        sample = self._samples[chunk.sample_id]
        sample.exponents += sum_exponents(probe, dtype)
        sample.rows += len(probe)
        for finding in findings:
            key = finding.kind, finding.layer_id
            before = sample.findings.get(key)
            sample.findings[key] = before.merged(finding) if before else finding


_Found = tuple[str, int, int, int, float, str]  # kind, row, layer, count, value, detail


def _counted(bits: Bits, counts: NDArray[np.int64], dtype: np.dtype[np.generic]) -> Iterator[_Found]:
    """What the gather has counted; rows are searched only for the first place."""
    for layer, column in np.argwhere(counts[:, : len(_COUNTED)]):
        kind = _COUNTED[column]
        row, channel = first_element(bits[:, layer], kind, dtype)
        detail, value = f"channel {channel}" if channel >= 0 else "counted, but not in the rows", math.nan
        if kind == "saturated":
            value = float(counts[layer, 3:].astype(np.int32).view(np.float32)[0])
            detail += f", largest |x| {value:.6g}"
        yield kind, row, int(layer), int(counts[layer, column]), value, detail


def _constant(rows: np.ndarray, constant: NDArray[np.bool_]) -> Iterator[_Found]:
    for layer in np.flatnonzero(constant.any(axis=0)):
        found = np.flatnonzero(constant[:, layer])
        value = float(rows[found[0], layer, 0])
        yield "constant", int(found[0]), int(layer), len(found), value, f"all elements {value}"
