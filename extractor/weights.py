"""Which weights a model folder holds, told without reading all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from extractor.model_info import WEIGHT_PATTERNS

# A terabyte would take longer to read than to extract with. Blocks of 4 KiB, evenly spread: a model of up to 16 MiB is
# read whole, in one of 300 MB no matrix of 200 rows and columns escapes, and a fine-tuned checkpoint of any size, whose
# matrices all differ, is told from its base by each single block.
_BLOCKS = 4096
_BLOCK_BYTES = 4096


def weights_hash(model: Path) -> str:
    """Of the weight files' names, sizes, both ends and 4,096 blocks between them. "none" where there is no file."""
    files = sorted({path for pattern in WEIGHT_PATTERNS for path in model.glob(pattern)})
    if not files:
        return "none"
    digest = hashlib.sha256()
    step = max(_BLOCK_BYTES, sum(file.stat().st_size for file in files) // _BLOCKS)
    for file in files:
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        for block in _blocks(file, step):
            digest.update(block)
    return digest.hexdigest()[:16]


def _blocks(file: Path, step: int) -> Iterator[bytes]:
    with file.open("rb", buffering=0) as handle:
        for start in range(0, file.stat().st_size, step):
            handle.seek(start)
            yield handle.read(_BLOCK_BYTES)
        handle.seek(max(0, file.stat().st_size - _BLOCK_BYTES))
        yield handle.read(_BLOCK_BYTES)
