"""A rate measured here and now: a few short extractions with the real model, into stores that are thrown away."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np
import numpy.typing as npt

from extractor.budget.lengths import LengthCounts
from extractor.budget.rates import Rate, measured
from extractor.config import Config
from extractor.disk import existing_parent
from extractor.errors import EngineError, UsageError
from extractor.model_info import ModelInfo
from extractor.samples import SamplesFile, write_samples
from extractor.warm_up import STEPS

# Real text for the drawn samples is cut out of this many tokens: experts of an MoE are not routed to evenly by it.
_POOL_TOKENS = 1 << 20
_SHORT_S = 30.0


class Timed(Protocol):
    """What is needed of extract's Summary: `seconds` without the engine's start, the rate without the first steps."""

    @property
    def tokens(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def warm_up_seconds(self) -> float: ...
    @property
    def steady_tokens_per_s(self) -> float: ...
    @property
    def interrupted(self) -> bool: ...


Extract = Callable[[Config], Timed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """`samples` drawn from the corpus, extracted `repeats` times. `out` decides on which disk (None: the default for
    temporary files)."""

    model: Path
    samples: int
    repeats: int = 3
    engine: str = "vllm"
    tp: int = 1
    layers: str = "eagle3"
    last: bool = False
    codec: str = "none"
    seed: int = 0
    out: Path | None = None

    def __post_init__(self) -> None:
        for option, value in (("--calibrate", self.samples), ("--repeats", self.repeats), ("--tp", self.tp)):
            if value < 1:
                raise UsageError(f"{option} is {value}; at least 1 is needed; leave --calibrate out to time nothing")


def calibrate(task: Calibration, lengths: LengthCounts, texts: list[Path], extract: Extract) -> tuple[Rate, str]:
    """(rate, what to know about it). Sample lengths are drawn from `lengths`, token ids are cut out of the samples
    files `texts`, or random without any.

    Raises what `extract` raises, and EngineError when it stored nothing.
    """
    drawn = lengths.draw(min(task.samples, lengths.samples), task.seed, "calibration")
    parent = existing_parent(task.out) if task.out else None
    with tempfile.TemporaryDirectory(prefix=".calibration-", dir=parent) as folder:
        samples = Path(folder) / "samples.parquet"
        _write_samples(samples, drawn, _pool(task, texts), task.seed)
        config = Config(
            samples=samples,
            model=task.model,
            out=Path(folder) / "store",
            engine=task.engine,
            tp=task.tp,
            layers=task.layers,
            last=task.last,
            codec=task.codec,
        )
        runs = [_run(replace(config, out=config.out.with_name(f"store-{i}")), extract) for i in range(task.repeats)]
    origin = f"{task.repeats} timed runs of {drawn.samples:,} samples, {drawn.tokens:,} tokens, with {task.engine}"
    origin += f", without each run's first {STEPS} steps"
    return measured([run.steady_tokens_per_s for run in runs], origin), _caution(runs)


def _run(config: Config, extract: Extract) -> Timed:
    run = extract(config)
    if run.interrupted:
        raise KeyboardInterrupt
    if run.tokens <= 0 or run.seconds <= 0:
        raise EngineError(
            f"the timed extraction stored {run.tokens} tokens in {run.seconds:.1f} s, so it gives no rate; run "
            "`extractor extract` on a few samples to see why"
        )
    return run


def _caution(runs: list[Timed]) -> str:
    seconds = median(run.seconds for run in runs)
    if seconds >= _SHORT_S:
        return ""
    first = median(run.warm_up_seconds for run in runs)
    return (
        f"each timed run took {seconds:.1f} s, {first:.1f} s of it the first steps, which are left out; runs under "
        f"{_SHORT_S:.0f} s say little about hours of work: raise --calibrate"
    )


def _pool(task: Calibration, texts: list[Path]) -> npt.NDArray[np.int32]:
    """Token ids to cut samples out of: int32, of about a million tokens at most."""
    parts: list[npt.NDArray[np.int32]] = []
    size = 0
    for sample in (sample for file in texts for sample in SamplesFile(file)):
        parts.append(sample.token_ids)
        size += sample.token_ids.size
        if size >= _POOL_TOKENS:
            break
    if parts:
        return np.concatenate(parts)
    vocabulary = ModelInfo.from_dir(task.model).vocab_size
    return np.random.default_rng(task.seed).integers(0, vocabulary, _POOL_TOKENS, dtype=np.int32)


def _write_samples(file: Path, drawn: LengthCounts, pool: npt.NDArray[np.int32], seed: int) -> None:
    """Consecutive pieces of the pool, which repeats where it is too short, in a random order of lengths."""
    lengths = np.random.default_rng(seed).permutation(np.repeat(drawn.lengths, drawn.counts))
    stops = np.cumsum(lengths)
    pieces = [pool.take(np.arange(b - n, b), mode="wrap") for n, b in zip(lengths, stops, strict=True)]
    write_samples(file, [{"sample_id": f"calibration-{i}", "input_ids": ids.tolist()} for i, ids in enumerate(pieces)])
