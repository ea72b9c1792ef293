"""Which samples a store holds: flat arrays, so that a million samples take a fraction of a second and of 200 MB."""

from __future__ import annotations

import difflib
import heapq
import os
from collections.abc import Iterator, Sequence

import numpy as np

from extractor.record import ENTRY, checksum

_LIKELY = 200


class Catalog:
    """entries ENTRY [N] in the order of sealing; shards int32 [N], the shard's index in the store; both read-only."""

    def __init__(self, entries: np.ndarray, shards: np.ndarray, ids: bytes) -> None:
        """`ids`: the N ids' UTF-8 bytes end to end. Where an id stands more than once, the last one wins."""
        order = np.argsort(entries["hash"])
        keep = _last_of_each(entries, ids, order)
        if keep is not None:
            entries, shards, ids = entries[keep], shards[keep], _select(entries, ids, keep)
            order = np.argsort(entries["hash"])
        self.entries, self.shards = entries, shards
        self._ids = ids
        self._ends = np.cumsum(entries["id_bytes"], dtype=np.int64)
        self._order = order.astype(np.int32)
        self._sorted_hashes = entries["hash"][order]

    @classmethod
    def join(cls, parts: Sequence[tuple[int, np.ndarray, bytes]]) -> Catalog:
        """Parts (shard index, entries, ids), oldest first."""
        shards = np.repeat(np.array([part[0] for part in parts], np.int32), [len(part[1]) for part in parts])
        if len(parts) == 1:  # a million entries are 60 MB, which need not be copied
            return cls(parts[0][1], shards, parts[0][2])
        entries = np.concatenate([np.empty(0, ENTRY), *(part[1] for part in parts)])
        return cls(entries, shards, b"".join(part[2] for part in parts))

    def __len__(self) -> int:
        return len(self.entries)

    def sample_id(self, row: int) -> str:
        end = int(self._ends[row])
        return self._ids[end - int(self.entries["id_bytes"][row]) : end].decode()

    def __iter__(self) -> Iterator[str]:
        start = 0
        for end in self._ends.tolist():
            yield self._ids[start:end].decode()
            start = end

    def find(self, sample_id: str) -> int | None:
        """Row of `sample_id`, or None."""
        wanted = np.uint64(checksum(sample_id.encode(errors="surrogatepass")))
        at = int(np.searchsorted(self._sorted_hashes, wanted))
        while at < len(self) and self._sorted_hashes[at] == wanted:
            row = int(self._order[at])
            if self.sample_id(row) == sample_id:
                return row
            at += 1
        return None

    def nearest(self, sample_id: str, count: int = 3) -> list[str]:
        """The ids most like `sample_id`, for messages: of those with the longest common beginning, since a comparison
        with a million ids takes minutes."""
        likely = heapq.nlargest(_LIKELY, self, key=lambda name: len(os.path.commonprefix((name, sample_id))))
        return difflib.get_close_matches(sample_id, likely, count, cutoff=0.3)


def without(entries: np.ndarray, ids: bytes, seal_offsets: set[int]) -> tuple[np.ndarray, bytes]:
    """(entries, ids) less those whose seals stand at the given offsets."""
    keep = np.flatnonzero(~np.isin(entries["seal_offset"], list(seal_offsets)))
    return entries[keep], _select(entries, ids, keep)


def _select(entries: np.ndarray, ids: bytes, rows: np.ndarray) -> bytes:
    ends = np.cumsum(entries["id_bytes"], dtype=np.int64)
    starts = ends - entries["id_bytes"]
    return b"".join(ids[start:end] for start, end in zip(starts[rows].tolist(), ends[rows].tolist(), strict=True))


def _last_of_each(entries: np.ndarray, ids: bytes, order: np.ndarray) -> np.ndarray | None:
    """Rows to keep, in order, where some id stands twice; None where none does. `order` sorts the hashes."""
    hashes = entries["hash"][order]
    repeated = np.flatnonzero(hashes[1:] == hashes[:-1])
    if repeated.size == 0:
        return None
    doubtful = np.unique(np.concatenate([order[repeated], order[repeated + 1]]))
    ends = np.cumsum(entries["id_bytes"], dtype=np.int64)
    last: dict[bytes, int] = {}
    for row in doubtful.tolist():
        last[ids[ends[row] - entries["id_bytes"][row] : ends[row]]] = row
    keep = np.ones(len(entries), bool)
    keep[doubtful] = False
    keep[list(last.values())] = True
    return np.flatnonzero(keep)
