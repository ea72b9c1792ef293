"""What the store benchmarks share: a manifest of the reference case, samples, and raw files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

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


def write_store(path: Path, sample: np.ndarray, count: int, codec: str = "none", **options: int) -> float:
    """Write `count` copies; returns file bytes / payload."""
    prepare_store(path, manifest(codec))
    tokens, stats = np.zeros(len(sample), np.int32), np.zeros(LAYERS, STATS)
    total = count * sample.nbytes
    with ShardWriter(path, run_id="r", writer=0, expected_bytes=total, options=WriterOptions(**options)) as writer:
        for number in range(count):
            for start in range(0, len(sample), STEP_ROWS):
                writer.write_rows(str(number), start, sample[start : start + STEP_ROWS])
            writer.seal(str(number), token_ids=tokens, loss_mask=tokens, stats=stats)
    return sum(file.stat().st_size for file in path.glob("shard-*/*")) / total


def write_raw(file: Path, sample: np.ndarray, count: int) -> None:
    """One file, written front to back, one fsync at its end."""
    with file.open("wb", buffering=0) as handle:
        for _ in range(count):
            data = sample.view(np.uint8).reshape(-1).data
            while data:
                data = data[handle.write(data) :]
        os.fsync(handle.fileno())
