"""`compact`: rewrite shards without their dead space, one by one. Its copy is durable before a shard goes."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from extractor.disk import require_room
from extractor.errors import StoreError, UsageError
from extractor.manifest import Manifest
from extractor.store import ShardWriter, Store
from extractor.store.disk import sync_folder
from extractor.store.layout import shards, unlist
from extractor.store.lock import RunLock, require_no_writers
from extractor.store.parts import parts
from extractor.store.reader import ShardState
from extractor.store.rejects import read_rejects, write_rejects

_GONE = ".gone-"
_UNNAMED = ".new-"  # what a writer makes before it has the name of a shard; it has no samples yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """`rewritten` and `removed` are shard names; `freed_bytes` is what the store shrank by."""

    rewritten: list[str]
    removed: list[str]
    samples: int
    freed_bytes: int


def compact(path: Path | str, *, min_dead_share: float = 0.05) -> Compaction:
    """Rewrite the shards of which at least `min_dead_share` is dead, and remove those that a repair gave up or that
    hold no sample.

    Every copied tile is compared with its checksum. Needs room for what is alive in the largest rewritten shard, less
    what the smaller ones gave back before. A crash leaves samples twice at worst, never missing. Raises CorruptError
    for a damaged sample, DiskFullError before a shard that there is no room to copy, and StoreError while a run is
    writing; shards that were not rewritten by then are still there.
    """
    if not 0 <= min_dead_share <= 1:
        raise UsageError(f"min_dead_share is {min_dead_share}; it is a share of a shard; give a number from 0 to 1")
    path = Path(path)
    Manifest.load(path)  # says what is wrong with a path that is no store
    require_no_writers(path, "compaction")
    with RunLock(path, shared=False):
        return _compact(path, min_dead_share)


def _compact(path: Path, min_dead_share: float) -> Compaction:
    if parts(path):
        raise StoreError(f"{path} has shards in other folders; collect them with `extractor gather`, then compact")
    _sweep(path)
    store = Store.open(path, check=True)
    before = _size(path)
    useless = _given_up(path) | {shard.name for shard in store.shards if shard.samples == 0}
    _remove(path, useless)
    wasteful = [s for s in store.shards if s.name not in useless and 0 < s.dead_bytes >= min_dead_share * s.file_bytes]
    _rewrite(store, wasteful)
    return Compaction(
        rewritten=[shard.name for shard in wasteful],
        removed=sorted(useless),
        samples=sum(shard.samples for shard in wasteful),
        freed_bytes=before - _size(path),
    )


def _given_up(path: Path) -> set[str]:
    """Shards that a repair gave up whole, and those that a killed compaction left in the list of rejects only."""
    there = {folder.name for folder in shards(path)}
    return {r.shard for r in read_rejects(path) if r.seal_offset is None or r.shard not in there}


def _rewrite(store: Store, wasteful: list[ShardState]) -> None:
    """Those with the least alive first: each makes room for the next."""
    rows: dict[str, list[int]] = {shard.name: [] for shard in wasteful}
    for row in range(len(store)):
        name, _ = store.place(row)
        if name in rows:
            rows[name].append(row)
    with ShardWriter(store.path, run_id=f"compact-{time.time_ns()}", writer=os.getpid()) as writer:
        for shard in sorted(wasteful, key=_live_bytes):
            require_room(store.path, _live_bytes(shard), remedy="then compact again")
            for row in rows[shard.name]:
                writer.copy(store.at(row))
            writer.flush()
            _remove(store.path, {shard.name})


def _live_bytes(shard: ShardState) -> int:
    return shard.file_bytes - shard.dead_bytes


def _remove(path: Path, names: set[str]) -> None:
    """Out of the list first: a listed shard that is gone counts as lost. Then out of the names of shards: one that is
    deleted in part counts as damaged. Its rejects outlive it until both are durable."""
    if not names:
        return
    unlist(path, names)
    for name in names:
        if (path / name).exists():
            (path / name).rename(path / f"{_GONE}{name}")
    sync_folder(path)
    write_rejects(path, [reject for reject in read_rejects(path) if reject.shard not in names])
    _sweep(path)


def _sweep(path: Path) -> None:
    """Delete what was removed, also what a killed compaction did not come to, and shards that never got a name."""
    for folder in chain(path.glob(f"{_GONE}*"), path.glob(f"{_UNNAMED}*")):
        if folder.is_symlink():
            folder.unlink()  # what lies elsewhere is whoever's who put it there
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("shard-*/data.mdb"))
