"""`gather`: bring the shards of all parts into the store itself. A copy exists once its checksum agrees."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from extractor.disk import require_room
from extractor.errors import ClusterError, CorruptError, ExtractorError
from extractor.manifest import Manifest
from extractor.replicas.part_sources import PartSource, source_of
from extractor.sizes import counted
from extractor.store.disk import sync_folder
from extractor.store.layout import DATA_FILE, enlist, listed
from extractor.store.lock import RunLock
from extractor.store.part_files import file_checksum
from extractor.store.parts import Part, drop_part, parts
from extractor.store.rejects import read_rejects
from extractor.store.shard_names import shard_name, shard_number

Report = Callable[[int, int], None]


@dataclass(slots=True, kw_only=True)
class Gathering:
    """What one call did. `problems`: part -> why it could not be collected; it stays listed."""

    shards: list[str] = field(default_factory=list)
    copied_bytes: int = 0
    resumed_bytes: int = 0
    parts: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def gather(store: Path, *, move: bool = False, report: Report | None = None) -> Gathering:
    """Copy every shard of every part into `store`; a part is then taken off the list, and with `move` deleted.

    Interrupted, it goes on in the middle of a file. Parts that can't be reached are left and named in `problems`;
    shards that a repair gave up are not copied. Raises DiskFullError before anything is copied, CorruptError for a copy
    that differs from what its host has, StoreError while another process changes the store.
    """
    fingerprint = Manifest.load(store).fingerprint()
    with RunLock(store, shared=False):
        return _gather(store, fingerprint, move, report)


def _gather(store: Path, fingerprint: str, move: bool, report: Report | None) -> Gathering:
    done = Gathering()
    here = _enlist_copied(store)
    given_up = {reject.shard for reject in read_rejects(store) if reject.seal_offset is None}
    found = [(part, *shown) for part in parts(store) if (shown := _open(part, fingerprint, here | given_up, done))]
    missing = sum(size for _, _, shards in found for _, size in shards)
    require_room(store, missing - sum(file.stat().st_size for file in store.glob(".gather-*/*")))
    copier = _Copier(store, missing, done, report)
    for part, source, shards in found:
        for name, size in shards:
            copier.copy(source, name, size)
        _drop(store, part, source, move)
        done.parts.append(str(part))
    return done


def _enlist_copied(store: Path) -> set[str]:
    """Names of the shards in the store's own folder; those that a killed call did not come to list are listed now."""
    here = {folder.name for folder in store.iterdir() if shard_number(folder.name) is not None}
    for name in sorted(here - {shard_name(number) for number in listed(store)}):
        enlist(store, name)
    return here


def _drop(store: Path, part: Part, source: PartSource, move: bool) -> None:
    """Off the list goes the part only when its large files have: nobody would look for them any more."""
    if move:
        sync_folder(store)
        source.empty()
    drop_part(store, part)
    if move:
        source.delete()


def require_all(done: Gathering) -> None:
    """Raise ClusterError naming the parts that could not be collected."""
    if done.problems:
        listed = "; ".join(f"{part}: {why}" for part, why in done.problems.items())
        raise ClusterError(
            f"{counted(len(done.problems), 'part')} could not be collected: {listed}; run the same command again"
        )


def _open(
    part: Part, fingerprint: str, without: set[str], done: Gathering
) -> tuple[PartSource, list[tuple[str, int]]] | None:
    try:
        source = source_of(part)
        return source, source.shards(fingerprint, without)
    except ExtractorError as error:
        done.problems[str(part)] = str(error)
        return None


class _Copier:
    """Copies shard by shard; `report(done, total)` is told bytes."""

    def __init__(self, store: Path, total_bytes: int, done: Gathering, report: Report | None) -> None:
        self._store, self._total, self._done, self._report = store, total_bytes, done, report

    def copy(self, source: PartSource, name: str, size: int) -> None:
        folder = self._store / f".gather-{name}"
        folder.mkdir(exist_ok=True)
        file = folder / DATA_FILE
        self._fill(file, source, name, size)
        want, got = source.checksum(name), file_checksum(file)
        if want != got:
            file.unlink()
            raise CorruptError(
                f"the copy of {name} has checksum {got}, its source {want}; it was removed; check the disks and the "
                "network, and run the same command again"
            )
        sync_folder(folder)
        folder.rename(self._store / name)
        enlist(self._store, name)
        self._done.shards.append(name)

    def _fill(self, file: Path, source: PartSource, name: str, size: int) -> None:
        with file.open("ab") as handle:
            start = handle.tell()
            if start > size:  # of another file by this name; the checksum will tell what is right
                handle.truncate(0)
                start = 0
            self._add(start, resumed=True)
            for data in source.chunks(name, start, size):
                handle.write(data)
                self._add(len(data))
            handle.flush()
            os.fsync(handle.fileno())

    def _add(self, size: int, *, resumed: bool = False) -> None:
        if resumed:
            self._done.resumed_bytes += size
        else:
            self._done.copied_bytes += size
        if self._report is not None:
            self._report(self._done.copied_bytes + self._done.resumed_bytes, self._total)
