"""The canary of a run: a few of its samples go through the engine once more, and what comes out is compared with what
was stored. Rows of another request, of another layer or of an old buffer do not come out twice the same.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from extractor.config import Config
from extractor.detect import Finding
from extractor.engines.job import Engine, Job
from extractor.samples import Sample
from extractor.store import Store, prepare_store

# |a - b| / |a| of a row, by the engine's dtype: beyond the first limit a row is wrong; beyond the second, rows are
# wrong where more than a quarter of the sample's are. The second pass has another batch, hence other orders of sums:
# 4e-4 in float32, which is the rounding to fp16; a few percent in 16 bits, and more in rows whose router then chooses
# other experts (a mean of 0.05 is published for large mixtures, vLLM against transformers). Rows of different tokens
# lie at 0.18 and above even where they are neighbours, most near 1 (SmolLM2-135M, 200 samples, layers 2 to 30).
_LIMITS = {"float32": (0.01, 0.01), "bfloat16": (0.5, 0.1), "float16": (0.5, 0.1)}
_SHARE = 0.25


class Samples(Protocol):
    """A samples file, or a few of its samples."""

    sample_ids: list[str]
    lengths: np.ndarray

    def __iter__(self) -> Iterator[Sample]: ...


def check_canary(
    engine: Engine, config: Config, job: Job, samples: Samples, done: set[str], stop: Callable[[], bool]
) -> list[dict[str, Any]]:
    """Run `config.canary` samples of `done` again, drawn by the run's id. Returns a finding for each (sample, layer)
    with rows that differ by more than rounding can explain."""
    chosen = set(random.Random(job.run_id).sample(sorted(done), min(config.canary, len(done))))
    if not chosen:
        return []
    with _second_store(job) as folder:
        again = replace(job, store=folder, expected_bytes=_bytes(job, samples, chosen))
        picked = (sample for sample in samples if sample.sample_id in chosen)
        engine.run(again, picked, lambda _progress: None, stop)
        return [finding.as_json() for finding in _differences(Store.open(job.store), Store.open(folder))]


@contextmanager
def _second_store(job: Job) -> Iterator[Path]:
    folder = job.store / "runs" / f"{job.run_id}.canary"
    try:
        prepare_store(folder, Store.open(job.store).manifest)
        (folder / "runs").mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _bytes(job: Job, samples: Samples, chosen: set[str]) -> int:
    lengths = zip(samples.sample_ids, samples.lengths, strict=True)
    return sum(int(length) for sample_id, length in lengths if sample_id in chosen) * job.row_bytes


def _differences(first: Store, second: Store) -> Iterator[Finding]:
    compute = str(first.manifest.options.get("compute_dtype", "bfloat16"))
    for sample_id in second:
        stored, again = (np.asarray(store[sample_id].hidden_states) for store in (first, second))
        for slot, layer_id in enumerate(first.manifest.layer_ids):
            distance = row_distance(stored[:, slot], again[:, slot])
            wrong, limit = wrong_rows(distance, compute)
            if wrong.size:
                largest = float(distance.max())
                detail = (
                    f"{wrong.size} of {distance.size} rows came out differently the second time, by up to "
                    f"{largest:.3g} of the row's length; rounding explains {limit}"
                )
                yield Finding("canary", sample_id, int(wrong[0]), layer_id, int(wrong.size), largest, detail)


def wrong_rows(distance: np.ndarray, compute: str) -> tuple[np.ndarray, float]:
    """Which rows [n] of a sample's `distance` [T] no rounding in the dtype `compute` explains, and the limit they
    exceed."""
    alone, together = _LIMITS[compute]
    many = np.flatnonzero(distance > together)
    if many.size > _SHARE * distance.size:
        return many, together
    return np.flatnonzero(distance > alone), alone


def row_distance(stored: np.ndarray, again: np.ndarray) -> np.ndarray:
    """[T, H] twice -> |a - b| / |a| per row, float64 [T]; infinite where one of two elements is not finite."""
    a, b = stored.astype(np.float64), again.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, a - b)
    difference = np.nan_to_num(difference, nan=np.inf, posinf=np.inf, neginf=np.inf)
    length = np.linalg.norm(np.where(np.isfinite(a), a, 0.0), axis=1)
    distance: np.ndarray = np.linalg.norm(difference, axis=1) / np.maximum(length, np.finfo(np.float32).tiny)
    return distance
