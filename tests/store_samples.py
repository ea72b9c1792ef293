"""Small stores for tests: manifests, rows of random bits, and seals that fit them."""

from __future__ import annotations

import mmap
import re

import ml_dtypes
import numpy as np

from extractor.layers import CONVENTION
from extractor.manifest import Manifest
from extractor.record import PAGE_HEADER_BYTES, STATS
from extractor.store import ShardWriter, WriterOptions

SMALL = WriterOptions(tile_bytes=4096, group_bytes=16384, turn_bytes=8192, buffer_bytes=32768, lanes=1)


def a_manifest(**changes):
    fields = {
        "model_name": "tiny",
        "model_config_hash": "c0",
        "model_dtype": "bfloat16",
        "num_layers": 6,
        "layer_ids": (2, 3, 5),
        "layer_convention": CONVENTION,
        "hidden_size": 32,
        "dtype": "float16",
        "tokenizer_hash": "t0",
        "samples_hash": "s0",
        "engine": "vllm",
        "engine_version": "0.1",
        "extractor_version": "0.1.0",
        "created": "2026-01-01T00:00:00Z",
        "options": {"overflow": "saturate"},
    }
    return Manifest(**{**fields, **changes})


def rows_of(seed, tokens, manifest):
    """[tokens, L, H] of random bit patterns: NaN of every payload, infinities, both zeros and subnormals among them."""
    bits = np.random.default_rng(seed).integers(0, 1 << 16, (tokens, *manifest.row_shape), np.uint16)
    return bits.view(np.float16 if manifest.dtype == "float16" else ml_dtypes.bfloat16)


def stats_of(rows):
    """STATS [L] of rows [T, L, H] that were stored as they came."""
    stats = np.zeros(rows.shape[1], STATS)
    with np.errstate(invalid="ignore"):
        values = rows.astype(np.float32)
    for layer in range(rows.shape[1]):
        stats["inf"][layer] = np.isinf(values[:, layer]).sum()
        stats["nan"][layer] = np.isnan(values[:, layer]).sum()
        stats["max_abs"][layer] = np.abs(values[:, layer][np.isfinite(values[:, layer])]).max(initial=0)
    return stats


def seal(writer, name, rows):
    tokens = len(rows)
    writer.seal(name, token_ids=np.arange(tokens), loss_mask=np.arange(tokens) % 2, stats=stats_of(rows))


def write_samples(path, samples, run_id="r", writer=0, options=SMALL):
    """Write and seal {id: rows} by one writer."""
    with ShardWriter(path, run_id=run_id, writer=writer, options=options) as shard_writer:
        for name, rows in samples.items():
            shard_writer.write_rows(name, 0, rows)
            seal(shard_writer, name, rows)


def assert_same_rows(got, want):
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


def index_block(file):
    """Offset of the shard's index. LMDB does not clear the ends of its pages, so the mark alone may be a leftover."""
    data = file.read_bytes()
    found = (match.start() for match in re.finditer(b"INDX", data))
    return next(at for at in found if (at - PAGE_HEADER_BYTES) % mmap.PAGESIZE == 0)
