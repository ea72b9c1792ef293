"""A run without a model: steps of Kimi-K2.5's shape, [*, 3, 7168] bf16, through the session that an engine uses.

Everything has the defaults of `extract`. The rows have the statistics that matter for a codec; their tokens go with
them, so that the detectors look at them and find nothing.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from store_data import HIDDEN, LAYERS, ROW_BYTES, manifest, states
from torch import Tensor

from extractor.capture import Chunk
from extractor.config import Config
from extractor.engines.job import Job
from extractor.engines.session import Session
from extractor.samples import Sample
from extractor.store import prepare_store

DISTINCT_ROWS = 64  # store_data.states repeats after so many
DEFAULTS = {name: item.default for name, item in Config.__dataclass_fields__.items()}


@dataclass(frozen=True, slots=True)
class Load:
    """`samples` samples of `tokens` tokens each, in steps of `step_rows` rows of one sample."""

    samples: int
    tokens: int
    step_rows: int

    @property
    def nbytes(self) -> int:
        return self.samples * self.tokens * ROW_BYTES

    def share(self, writers: int) -> Load:
        return Load(self.samples // writers, self.tokens, self.step_rows)


def make_steps(load: Load, sets: int = 2) -> list[list[Tensor]]:
    """`sets` forward passes' worth of layer tensors [step_rows, H] bf16, to be used in turn."""
    rows = torch.from_numpy(states(load.step_rows * ROW_BYTES))
    return [[rows[:, layer].bfloat16().clone() for layer in range(LAYERS)] for _ in range(sets)]


class Run:
    """One rank's run: `open` once a round, then `write`, which ends when everything is durable."""

    def __init__(
        self, folder: Path, load: Load, steps: list[list[Tensor]], *, codec: str = "none", rank: int = 0
    ) -> None:
        self._folder, self._load, self._steps, self._codec, self._rank = folder, load, steps, codec, rank
        self._tokens = (np.arange(load.tokens) % DISTINCT_ROWS).astype(np.int32)
        self.status: dict[str, float] = {}
        self._session: Session | None = None

    def prepare(self) -> None:
        """An empty store, shared by all ranks."""
        shutil.rmtree(self._folder, ignore_errors=True)
        prepare_store(self._folder, manifest(self._codec))

    def open(self) -> None:
        """Everything a run allocates once, at its start."""
        self.release()
        job = Job(
            run_id="bench",
            store=self._folder,
            layer_ids=(2, 30, 58),
            num_layers=61,
            hidden_size=HIDDEN,
            dtype=DEFAULTS["dtype"],
            overflow=DEFAULTS["overflow"],
            expected_bytes=self._load.nbytes,
            token_budget=min(DEFAULTS["token_budget"], self._load.step_rows),
            commit_seconds=DEFAULTS["commit_seconds"],
        )
        self._session = Session(job, self._rank, torch.device("cpu"))

    def write(self) -> None:
        load, mask, session = self._load, np.ones(self._load.tokens, np.uint8), self._session
        assert session is not None, "open first"
        turn = 0
        for number in range(load.samples):
            sample_id = f"{self._rank}-{number}"
            session.expect(Sample(sample_id, self._tokens, mask))
            for position in range(0, load.tokens, load.step_rows):
                count = min(load.step_rows, load.tokens - position)
                chunk = Chunk(sample_id, position, 0, count)
                session.step(self._steps[turn % len(self._steps)], [chunk])
                turn += 1
        self.status = session.finish()
        assert self.status["tokens"] == load.samples * load.tokens
        assert not self.status["findings"], self.status["findings"]

    def release(self) -> None:
        """Give the ring back, so that rings of many rounds do not lie side by side."""
        self._session = None

    def stored_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._folder.glob("shard-*/*"))
