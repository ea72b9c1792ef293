"""`compact`: rewrite shards without their dead space. New shards are durable before old ones go."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from extractor.errors import StoreError, UsageError
from extractor.manifest import Manifest
from extractor.store import ShardWriter, Store
from extractor.store.layout import unlist
from extractor.store.lock import require_no_writers
from extractor.store.parts import parts
from extractor.store.rejects import read_rejects, write_rejects


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """`rewritten` and `removed` are shard names; `freed_bytes` is what the store shrank by."""

    rewritten: list[str]
    removed: list[str]
    samples: int
    freed_bytes: int


def compact(path: Path | str, *, min_dead_share: float = 0.05) -> Compaction:
    """Rewrite the shards of which at least `min_dead_share` is dead, and remove those that a repair gave up.

    Every copied tile is compared with its checksum. Needs room for the largest rewritten shard. A crash leaves samples
    twice at worst, never missing. Raises CorruptError for a damaged sample and StoreError while a run is writing; the
    old shards are then still there.
    """
    if not 0 <= min_dead_share <= 1:
        raise UsageError(f"min_dead_share is {min_dead_share}; it is a share of a shard; give a number from 0 to 1")
    path = Path(path)
    Manifest.load(path)  # says what is wrong with a path that is no store
    require_no_writers(path, "compaction")
    if parts(path):
        raise StoreError(f"{path} has shards in other folders; collect them with `extractor gather`, then compact")
    store = Store.open(path, check=True)
    before = _size(path)
    wasteful = [s for s in store.shards if s.dead_bytes > 0 and s.dead_bytes >= min_dead_share * s.file_bytes]
    moved = _copy(store, {shard.name for shard in wasteful})
    given_up = sorted({r.shard for r in read_rejects(path) if r.seal_offset is None} - {s.name for s in store.shards})
    rewritten = [shard.name for shard in wasteful]
    _remove(path, {*rewritten, *given_up})
    return Compaction(rewritten=rewritten, removed=given_up, samples=moved, freed_bytes=before - _size(path))


def _copy(store: Store, shards: set[str]) -> int:
    rows = [row for row in range(len(store)) if store.place(row)[0] in shards]
    if rows:
        with ShardWriter(store.path, run_id=f"compact-{time.time_ns()}", writer=os.getpid()) as writer:
            for row in rows:
                writer.copy(store.at(row))
    return len(rows)


def _remove(path: Path, names: set[str]) -> None:
    """Out of the list first: a listed shard that is gone counts as lost."""
    if not names:
        return
    unlist(path, names)
    for name in sorted(names):
        shutil.rmtree(path / name, ignore_errors=True)
    kept = [reject for reject in read_rejects(path) if reject.shard not in names]
    write_rejects(path, kept)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("shard-*/data.mdb"))
