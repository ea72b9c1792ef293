"""`verify --repair`: give up what is damaged, save what is not, so that the next run redoes exactly the rest."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from extractor.completeness import completeness
from extractor.disk import require_room, store_bytes
from extractor.errors import CorruptError, StoreError
from extractor.integrity import Finding, IntegrityReport
from extractor.store import ShardWriter, Store
from extractor.store.lock import RunLock, require_no_writers
from extractor.store.parts import parts
from extractor.store.rejects import Reject, add_rejects
from extractor.store.sample import StoredSample
from extractor.store.sample_check import check_lengths, check_sample, check_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """`redo`: ids that the store has lost; `shards`: given up whole; `saved`: their samples that were copied out.
    `unnamed`: how many more samples are lost that nothing names any more, as the index of their shard is gone; None
    where it can't be counted either, because no run has ended by itself."""

    redo: list[str]
    unnamed: int | None
    shards: list[str]
    saved: list[str]


def repair(path: Path | str, report: IntegrityReport) -> Repair:
    """Act on `check_store`'s findings. Nothing is deleted: damaged shards stay where they are, out of the store.

    Raises StoreError, and changes nothing, while a run is writing, or when a shard is not damaged but another store's,
    of a newer format, or not readable for this user.
    """
    path = Path(path)
    for folder in (path, *(part.path for part in parts(path) if part.visible)):
        require_no_writers(folder, "a repair")
    with RunLock(path, shared=False):
        return _repair(path, report)


def _repair(path: Path, report: IntegrityReport) -> Repair:
    store = Store.quietly(path, check=True)
    findings = [f for f in report.findings if f.shard in store.shard_names]  # others were removed since by a compact
    lost = sorted({f.shard for f in findings if f.seal_offset is None})
    samples = [f for f in findings if f.seal_offset is not None and f.shard not in lost]
    _require_damage(store, lost)
    saved = _save(store, lost, {f.sample_id for f in samples})
    reasons = {f.shard: f.message for f in findings if f.seal_offset is None}
    add_rejects(path, [_reject(f) for f in samples] + [Reject(shard=name, reason=reasons[name]) for name in lost])
    hidden = {f.sample_id for f in samples} | {store.id_at(row) for row in _rows_in(store, lost)}
    after = _without_damaged(path, hidden - set(saved))
    redo = sorted(sample_id for sample_id in store if sample_id not in after)
    return Repair(redo=redo, unnamed=_unnamed(after, redo, lost), shards=lost, saved=saved)


def _reject(finding: Finding) -> Reject:
    return Reject(
        shard=finding.shard, seal_offset=finding.seal_offset, sample_id=finding.sample_id, reason=finding.message
    )


def _without_damaged(path: Path, sample_ids: Collection[str | None]) -> Store:
    """The store once none of these samples is damaged in it: of one whose newest seal was given up an older one counts
    again, which nobody has checked yet."""
    while True:
        store = Store.quietly(path, check=True)
        rejects = []
        for row in range(len(store)) if sample_ids else ():
            if store.id_at(row) in sample_ids:
                rejects += _rejects_of(store, row)
        if not rejects:
            return store
        add_rejects(path, rejects)


def _rejects_of(store: Store, row: int) -> list[Reject]:
    """One when the sample is damaged."""
    try:
        check_sample(store, row, tiles=True)
    except CorruptError as error:
        shard, offset = store.place(row)
        return [Reject(shard=shard, seal_offset=offset, sample_id=store.id_at(row), reason=error.problem)]
    return []


def _rows_in(store: Store, names: list[str]) -> list[int]:
    """Of the samples whose newest seals stand in the shards of these names."""
    return [row for row in range(len(store)) if store.place(row)[0] in names] if names else []


def _require_damage(store: Store, lost: list[str]) -> None:
    """What can't be listed for another reason than damage, or its absence, is not for a repair to give up."""
    for name in lost:
        problem = store.problems.get(name)
        if problem is not None and not isinstance(problem, CorruptError) and store.file(name).file.exists():
            raise StoreError(f"shard {name} is not damaged, so a repair leaves the store as it is: {problem}")


def _unnamed(after: Store, redo: list[str], lost: list[str]) -> int | None:
    """Lost samples beyond those of `redo`: only a shard given up whole can have held any."""
    if not lost:
        return 0
    known = completeness(after)
    return None if known.missing is None else max(0, known.missing - known.rejected - len(redo))


def _save(store: Store, lost: list[str], broken: set[str | None]) -> list[str]:
    """Copy the whole samples of lost shards into new shards; the newest copy of each that is in no good shard."""
    elsewhere = {store.id_at(row) for row in range(len(store)) if store.place(row)[0] not in lost} - broken
    found = {s.sample_id: s for name in lost for s in _salvaged(store, name)}
    found |= {s.sample_id: s for s in _listed(store, lost)}
    found = {sample_id: sample for sample_id, sample in found.items() if sample_id not in elsewhere}
    if found:
        _require_room(store.path, found.values())
        with ShardWriter(store.path, run_id=f"repair-{time.time_ns()}", writer=os.getpid()) as writer:
            for sample in found.values():
                writer.copy(sample)
    return sorted(found)


def _require_room(path: Path, samples: Collection[StoredSample]) -> None:
    tokens = sum(len(sample) for sample in samples)
    stored = sum(sample.seal.stored_bytes for sample in samples)
    require_room(path, store_bytes(len(samples), tokens, stored), remedy="then repair again")


def _listed(store: Store, lost: list[str]) -> Iterator[StoredSample]:
    """The whole samples that lost shards still list: their trees are damaged elsewhere."""
    for row in _rows_in(store, lost):
        with contextlib.suppress(CorruptError):
            yield check_sample(store, row, tiles=True)


def _salvaged(store: Store, shard_name: str) -> Iterator[StoredSample]:
    shard = store.file(shard_name)
    if not shard.file.is_file():
        return
    for sample in store.salvage(shard):
        try:
            check_lengths(sample, store.manifest)
            check_values(sample, store.manifest)
        except CorruptError:
            continue
        yield sample
