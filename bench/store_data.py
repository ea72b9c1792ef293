"""What the store benchmarks share: a manifest of the reference case, samples, and raw files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from settings import size

from extractor.layers import CONVENTION
from extractor.manifest import Manifest
from extractor.record import STATS
from extractor.store import ShardWriter, WriterOptions, prepare_store

LAYERS, HIDDEN = 3, 7168
ROW_BYTES = LAYERS * HIDDEN * 2
STEP_ROWS = 512  # rows that arrive at once


def manifest(codec: str = "none") -> Manifest:
    return Manifest(
        model_name="bench",
        model_config_hash="",
        model_dtype="bfloat16",
        num_layers=61,
        layer_ids=(2, 30, 58),
        layer_convention=CONVENTION,
        hidden_size=HIDDEN,
        dtype="float16",
        codec=codec,
        tokenizer_hash="",
        samples_hash="",
        engine="bench",
        engine_version="",
        extractor_version="",
        created="",
    )


def states(sample_bytes: int) -> np.ndarray:
    """[T, 3, 7168] fp16 of about `sample_bytes`: bf16 values, Student-t with a scale a channel, as real states have."""
    rng = np.random.default_rng(0)
    rows = sample_bytes // ROW_BYTES
    values = rng.standard_t(4, (min(rows, 64), LAYERS, HIDDEN)) * rng.lognormal(0, 1, HIDDEN)
    bf16 = (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    return np.resize(bf16.astype(np.float16), (rows, LAYERS, HIDDEN))


class StoreWriter:
    """An open writer. `write` adds samples and returns when they are durable."""

    def __init__(self, path: Path, sample: np.ndarray, codec: str = "none", **options: int) -> None:
        prepare_store(path, manifest(codec))
        self.path = path
        self._sample = sample
        self._tokens, self._stats = np.zeros(len(sample), np.int32), np.zeros(LAYERS, STATS)
        self._options = WriterOptions(**options)
        self._writer = ShardWriter(path, run_id="r", writer=0, options=self._options)
        self._written = 0

    def start(self) -> None:
        """A turn of each lane: makes the shards and touches the memory, which a run pays for once."""
        turn = -(-self._options.turn_bytes // self._sample.nbytes)
        self.write(size(self._options.lanes * turn, toy=1))

    def write(self, count: int) -> None:
        for _ in range(count):
            name = str(self._written)
            for start in range(0, len(self._sample), STEP_ROWS):
                self._writer.write_rows(name, start, self._sample[start : start + STEP_ROWS])
            self._writer.seal(name, token_ids=self._tokens, loss_mask=self._tokens, stats=self._stats)
            self._written += 1
        self._writer.flush()

    def close(self) -> float:
        """File bytes / payload of all that was written."""
        self._writer.close()
        stored = sum(file.stat().st_size for file in self.path.glob("shard-*/*"))
        return stored / (self._written * self._sample.nbytes)


def write_store(path: Path, sample: np.ndarray, count: int, codec: str = "none") -> float:
    """A store of `count` equal samples named 0, 1, ...; returns file bytes / payload."""
    writer = StoreWriter(path, sample, codec)
    writer.write(count)
    return writer.close()


def write_raw(file: Path, sample: np.ndarray, count: int) -> None:
    """One new file, written front to back, one fsync at its end."""
    with file.open("wb", buffering=0) as handle:
        for _ in range(count):
            data = sample.view(np.uint8).reshape(-1).data
            while data:
                data = data[handle.write(data) :]
        os.fsync(handle.fileno())
