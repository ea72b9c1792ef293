"""A small job on a tiny model, for tests that run `extract` itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from models import VOCAB

from extractor.config import Config
from extractor.samples import write_samples
from extractor.store import Store


def write_random_samples(path: Path, lengths, seed: int = 0) -> Path:
    """Samples `s-0`, `s-1`, ... of these lengths; masks differ from sample to sample."""
    rng = np.random.default_rng(seed)
    rows = [
        {
            "sample_id": f"s-{number}",
            "source": "test",
            "input_ids": rng.integers(0, VOCAB, length).tolist(),
            "loss_mask": ((np.arange(length) + number) % 2).tolist(),
        }
        for number, length in enumerate(lengths)
    ]
    write_samples(path, rows)
    return path


def config(model: Path, samples: Path, out: Path, **options) -> Config:
    """Transformers engine, three layers in no particular order and the last one, unless told otherwise."""
    defaults = {"engine": "transformers", "layers": "4,1,0", "last": True, "commit_seconds": 0.05}
    return Config(model=model, samples=samples, out=out, **{**defaults, **options})


def store_bits(path: Path) -> dict[str, tuple[bytes, bytes, bytes]]:
    """Everything a sample holds, as bytes."""
    store = Store.open(path)
    return {
        sample_id: (
            np.ascontiguousarray(sample.hidden_states).tobytes(),
            sample.token_ids.tobytes(),
            sample.loss_mask.tobytes(),
        )
        for sample_id, sample in store.items()
    }
