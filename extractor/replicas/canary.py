"""A replica's canary: some of the samples that passed through it, kept for a second pass at its end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from extractor.canary import check_canary
from extractor.engines.job import Engine
from extractor.replicas.messages import Task
from extractor.samples import Sample


@dataclass(slots=True)
class Canary:
    """`size` samples, each that passed equally likely to be among them; checked only when `wanted`."""

    size: int = 0
    wanted: bool = False
    kept: list[Sample] = field(default_factory=list)
    _passed: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def watched(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """The same samples; keeps some of them (reservoir sampling)."""
        for sample in samples:
            self._passed += 1
            if len(self.kept) < self.size:
                self.kept.append(sample)
            elif (place := self._random.randrange(self._passed)) < self.size:
                self.kept[place] = sample
            yield sample

    def check(self, engine: Engine, task: Task) -> list[dict[str, Any]]:
        """Findings as `check_canary` gives them; none when not wanted."""
        if not self.wanted or not self.kept:
            return []
        job = replace(task.job, run_id=f"{task.job.run_id}-canary")
        samples = _Kept(self.kept)
        return check_canary(engine, task.config, job, samples, set(samples.sample_ids), lambda: False)


class _Kept:
    """What `check_canary` needs of a samples file."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples
        self.sample_ids = [sample.sample_id for sample in samples]
        self.lengths = np.array([sample.token_ids.size for sample in samples], np.int64)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)
