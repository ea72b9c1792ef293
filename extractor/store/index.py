"""The list of a shard's samples, read from its tree."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from extractor.record import ENTRY, decode_index
from extractor.store.tree import Tree


def read_index(tree: Tree, table: bytes, file: Path) -> tuple[np.ndarray, bytes]:
    """The blocks in a table of the shard's `file`, in order, as one: (ENTRY [N], the ids' UTF-8 bytes end to end).
    Raises CorruptError."""
    blocks = [decode_index(value, f"the index in {file}") for value in tree.values(table)]
    return np.concatenate([np.empty(0, ENTRY), *(entries for entries, _ in blocks)]), b"".join(ids for _, ids in blocks)
