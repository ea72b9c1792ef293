"""Write the golden files of the current format version. Run once for a version: old files are never rewritten."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from extractor.record import STATS, TILE, Seal, encode_index, encode_seal, index_entry

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))


def seal():
    """A seal with a value in every field."""
    stats = np.array([(1, 2, 3, 65504.0), (2**40, 0, 0, 0.5)], STATS)
    tiles = np.array([(0, 8208, 24, 2**63 + 1, 0, 2), (7, 16400, 12, 5, 2, 1)], TILE)
    return Seal(
        sample_id="A2-17/é",
        row_bytes=12,
        token_ids=np.array([0, 151_000, -1], np.int32),
        loss_mask=np.array([0, 1, 1], np.uint8),
        stats=stats,
        tiles=tiles,
    )


def index():
    data = encode_seal(seal())
    entry = index_entry(seal(), 24592, len(data), 4096)
    return encode_index(np.array([entry, entry]), "A2-17/éA2-17/é".encode())


def store_samples(manifest):
    from store_samples import rows_of

    return {"first": rows_of(1, 3, manifest), "second": rows_of(2, 9, manifest)}


def main():
    from store_samples import a_manifest, write_samples

    from extractor.store import prepare_store

    (HERE / "seal_v1.bin").write_bytes(encode_seal(seal()))
    (HERE / "index_v1.bin").write_bytes(index())
    for codec in ("none", "shuffle-zstd"):
        manifest = a_manifest(hidden_size=4, codec=codec)
        write_samples(prepare_store(HERE / f"store_v1_{codec}", manifest).path, store_samples(manifest))


if __name__ == "__main__":
    main()
