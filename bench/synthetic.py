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
from settings import size
from store_data import HIDDEN, LAYERS, ROW_BYTES, manifest, states
from torch import Tensor

from extractor.capture import Chunk
from extractor.config import Config
from extractor.engines.job import Job
from extractor.engines.session import Session
from extractor.samples import Sample
from extractor.store import WriterOptions, prepare_store

DISTINCT_ROWS = 64  # store_data.states repeats after so many
LANES = WriterOptions().lanes
START_TOKENS = size(WriterOptions().turn_bytes // ROW_BYTES + 1, toy=8)
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
        self._turn = 0
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
        self._start(self._session)

    def write(self) -> None:
        session = self._session
        assert session is not None, "open first"
        started = session.status()
        for number in range(self._load.samples):
            self._put(session, f"{self._rank}-{number}", self._load.tokens)
        status = session.finish()
        assert not status["findings"], status["findings"]
        self.status = {name: value - started[name] for name, value in status.items() if name != "findings"}
        assert self.status["tokens"] == self._load.samples * self._load.tokens

    def _start(self, session: Session) -> None:
        """A turn of each of the writer's lanes: makes the shards, with their dozen of syncs, and touches the memory."""
        for number in range(LANES):
            self._put(session, f"{self._rank}-start-{number}", START_TOKENS)
        session._capture.drain()
        session._writer.flush()

    def _put(self, session: Session, sample_id: str, tokens: int) -> None:
        ids = (np.arange(tokens) % DISTINCT_ROWS).astype(np.int32)
        session.expect(Sample(sample_id, ids, np.ones(tokens, np.uint8)))
        for position in range(0, tokens, self._load.step_rows):
            self._turn += 1
            chunk = Chunk(sample_id, position, 0, min(self._load.step_rows, tokens - position))
            session.step(self._steps[self._turn % len(self._steps)], [chunk])

    def release(self) -> None:
        """Give the ring back, so that rings of many rounds do not lie side by side."""
        self._session = None

    def stored_share(self) -> float:
        """Bytes of the shards / those of all rows."""
        payload = self._load.nbytes + LANES * START_TOKENS * ROW_BYTES
        return sum(file.stat().st_size for file in self._folder.glob("shard-*/*")) / payload
