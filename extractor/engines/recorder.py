"""From rows in any interleaving to sealed samples. Runs on the ring's writer thread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from extractor.capture import Chunk
from extractor.detect import Detectors
from extractor.engines.job import Job
from extractor.errors import EngineError
from extractor.record import stats_from_counts
from extractor.samples import Sample
from extractor.store import ShardWriter

_SATURATED, _MAX_BITS = 0, 3  # columns of counts
_FP16_LIMIT = 65504.0


@dataclass(slots=True)
class _Open:
    """A sample on its way: `rows` captured so far, `counts` int64 [L, 4] over them."""

    sample: Sample
    counts: np.ndarray
    rows: int = 0


class Recorder:
    """Sink of the ring. A sample is sealed when each of its positions came exactly once since its last start."""

    def __init__(self, writer: ShardWriter, job: Job) -> None:
        self._writer = writer
        self._job = job
        self._open: dict[str, _Open] = {}
        self.sealed_samples = 0
        self.sealed_tokens = 0
        self.restarts = 0  # samples that the engine preempted and computed again
        self._detectors = Detectors(job.layer_ids)
        self.findings: list[dict[str, Any]] = []

    def expect(self, sample: Sample) -> None:
        """Announce a sample (engine's thread). Announcing an open one again changes nothing: it was preempted."""
        if sample.sample_id not in self._open:
            self._open[sample.sample_id] = _Open(sample, self._no_counts())

    def check_tokens(self, chunks: Sequence[Chunk], seen: np.ndarray) -> None:
        """Compare the ids the model was given with the samples' own. Raises EngineError naming sample and position."""
        for chunk in chunks:
            want = self._open[chunk.sample_id].sample.token_ids[chunk.position : chunk.position + chunk.count]
            got = seen[chunk.row : chunk.row + chunk.count]
            wrong = np.flatnonzero(want != got)
            if wrong.size:
                at = int(wrong[0])
                raise EngineError(
                    f"sample {chunk.sample_id!r} position {chunk.position + at}: the model was given token "
                    f"{int(got[at])}, the sample holds {int(want[at])}; rows are attributed wrongly with this engine "
                    "version; please report it with the engine's version"
                )

    def write(self, chunk: Chunk, rows: np.ndarray, counts: np.ndarray) -> None:
        """Store rows [count, L, H] of one sample with their counts int64 [L, 4]; seal the sample when whole."""
        item = self._open[chunk.sample_id]
        if chunk.position == 0 and item.rows:
            self._restart(item)
        if chunk.position != item.rows:
            raise EngineError(
                f"sample {chunk.sample_id!r}: position {chunk.position} was captured after {item.rows} rows, so "
                f"positions are missing or doubled; is prefix caching on? run again with it off"
            )
        if self._job.overflow == "error" and counts[:, _SATURATED].any():
            raise EngineError(_overflow_message(chunk, rows, counts, self._job.layer_ids))
        self._writer.write_rows(chunk.sample_id, chunk.position, rows)
        item.rows += chunk.count
        _merge(item.counts, counts)
        token_ids = item.sample.token_ids[chunk.position : chunk.position + chunk.count]
        self._detectors.check(chunk, rows, counts, token_ids)
        if item.rows == item.sample.token_ids.size:
            self._seal(item)

    def _seal(self, item: _Open) -> None:
        sample = item.sample
        self._writer.seal(
            sample.sample_id,
            token_ids=sample.token_ids,
            loss_mask=sample.loss_mask,
            stats=stats_from_counts(item.counts),
        )
        del self._open[sample.sample_id]
        self.findings += [finding.as_json() for finding in self._detectors.finish(sample.sample_id)]
        self.sealed_samples += 1
        self.sealed_tokens += sample.token_ids.size

    def _restart(self, item: _Open) -> None:
        self._writer.discard(item.sample.sample_id)
        self.restarts += 1
        item.rows = 0
        item.counts = self._no_counts()

    def _no_counts(self) -> np.ndarray:
        return np.zeros((len(self._job.layer_ids), 4), np.int64)


def _merge(total: np.ndarray, part: np.ndarray) -> None:
    total[:, :_MAX_BITS] += part[:, :_MAX_BITS]
    np.maximum(total[:, _MAX_BITS], part[:, _MAX_BITS], out=total[:, _MAX_BITS])


def _overflow_message(chunk: Chunk, rows: np.ndarray, counts: np.ndarray, layer_ids: Sequence[int]) -> str:
    """The first saturated element. What it was before rounding is known where it is the only one; of several only
    their number and the largest |x| survive the conversion."""
    layer = int(np.flatnonzero(counts[:, _SATURATED])[0])
    total, peak = int(counts[layer, _SATURATED]), float(counts[layer, _MAX_BITS].astype(np.uint32).view(np.float32))
    values = rows[:, layer].astype(np.float32)
    clipped = np.argwhere(np.abs(values) == _FP16_LIMIT)  # and values that are 65,504 by themselves
    token, channel = (int(i) for i in clipped[0])
    place = f"sample {chunk.sample_id!r} token {chunk.position + token} layer {layer_ids[layer]} channel {channel}"
    if total == len(clipped) == 1:
        fault = f"{place} is {math.copysign(peak, values[token, channel]):.6g}, beyond fp16's 65,504"
    else:
        last = chunk.position + chunk.count - 1
        fault = (
            f"{place} is the first of {total} values of this layer in tokens {chunk.position} to {last} beyond fp16's "
            f"65,504; the largest |x| of them is {peak:.6g}"
        )
    return f"{fault}; store bf16 with --dtype bfloat16, or allow saturation with --overflow saturate"
