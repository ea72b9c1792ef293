"""Small stores with known content, for tests of everything that reads one."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np

from extractor.layers import CONVENTION
from extractor.manifest import Manifest
from extractor.record import STATS
from extractor.store import ShardWriter, Store, WriterOptions, prepare_store

NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
OPTIONS = WriterOptions(tile_bytes=4096, group_bytes=1 << 16, turn_bytes=1 << 15, buffer_bytes=1 << 16)


def a_manifest(**changes):
    fields = {
        "model_name": "tiny",
        "model_config_hash": "c0",
        "model_dtype": "bfloat16",
        "num_layers": 6,
        "layer_ids": (2, 3, 5, 6),
        "layer_convention": CONVENTION,
        "hidden_size": 16,
        "dtype": "float16",
        "tokenizer_hash": "t0",
        "samples_hash": "s0",
        "engine": "transformers",
        "engine_version": "0",
        "extractor_version": "0",
        "created": "2026-01-01T00:00:00Z",
    }
    return Manifest(**{**fields, **changes})


def content(name, tokens, manifest):
    """(token_ids int32 [T], loss_mask uint8 [T], rows [T, L, H]), decided by the name alone."""
    rng = np.random.default_rng(list(name.encode()))
    rows = rng.standard_normal((tokens, *manifest.row_shape)).astype(NUMPY[manifest.dtype])
    return rng.integers(0, 99, tokens).astype(np.int32), rng.integers(0, 2, tokens).astype(np.uint8), rows


def add(path, lengths, manifest, run_id="r"):
    """Seal the samples {id: tokens} in the store."""
    with ShardWriter(path, run_id=run_id, writer=0, options=OPTIONS) as writer:
        for name, tokens in lengths.items():
            token_ids, loss_mask, rows = content(name, tokens, manifest)
            writer.write_rows(name, 0, rows)
            writer.seal(name, token_ids=token_ids, loss_mask=loss_mask, stats=np.zeros(len(rows[0]), STATS))


def a_store(path, lengths, **changes):
    manifest = a_manifest(**changes)
    prepare_store(path, manifest)
    if lengths:
        add(path, lengths, manifest)
    return Store.open(path, check=True)


def many(count, seed=0, longest=60):
    lengths = np.random.default_rng(seed).integers(1, longest, count).tolist()
    return {f"s{n}": length for n, length in enumerate(lengths)}


def damage(store, name):
    """Flip one bit of the sample's first tile, in the shard where that tile is found."""
    sample = store[name]
    tile = sample.seal.tiles[0]
    rows = sample.hidden_states[: int(tile["rows"])].tobytes()
    for file in store.path.glob("shard-*/data.mdb"):
        with file.open("r+b") as handle:
            handle.seek(int(tile["offset"]))
            if handle.read(len(rows)) == rows:
                handle.seek(int(tile["offset"]) + 3)
                handle.write(bytes([rows[3] ^ 1]))
                return
    raise AssertionError(f"no shard of {store.path} holds {name}")


def norm_only_model(path):
    """A model folder that fits `a_manifest`, with nothing but what an export and an import look at."""
    import torch
    from safetensors.torch import save_file

    save_file({"model.norm.weight": torch.ones(16)}, path / "m.safetensors")
    config = {"model_type": "llama", "num_hidden_layers": 6, "hidden_size": 16, "vocab_size": 99, "rms_norm_eps": 1e-5}
    (path / "config.json").write_text(json.dumps(config))
    return path
