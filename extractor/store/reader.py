"""The store as a read-only mapping from sample id to sample."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from extractor.errors import StoreError
from extractor.manifest import Manifest
from extractor.shell import shell_command
from extractor.store.catalog import Catalog, without
from extractor.store.codec import codec
from extractor.store.description import require_own
from extractor.store.layout import shards
from extractor.store.missing import MissingSampleError
from extractor.store.parts import elsewhere
from extractor.store.rejects import Reject, read_rejects
from extractor.store.salvage import find_seals, fingerprint_in
from extractor.store.sample import StoredSample
from extractor.store.shard_file import Listing, ShardFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """What one shard holds. `samples` are those it is the newest home of; `dead_bytes` are values that no such sample
    names (unsealed, discarded, sealed again elsewhere, or rejected) and room that a killed writer had reserved."""

    name: str
    run_id: str
    writer: int
    samples: int
    file_bytes: int
    dead_bytes: int

    @classmethod
    def of(cls, file: ShardFile, listing: Listing, catalog: Catalog, index: int) -> ShardState:
        pages = catalog.entries["pages"][catalog.shards == index]
        unnamed = (listing.tile_pages - int(pages.sum(dtype=np.int64))) * listing.page_bytes
        return cls(
            name=file.path.name,
            run_id=listing.about["run_id"],
            writer=listing.about["writer"],
            samples=len(pages),
            file_bytes=listing.file_bytes,
            dead_bytes=unnamed + listing.file_bytes - listing.data_bytes,
        )


class Store(Mapping[str, StoredSample]):
    """Sealed samples only; where a sample was sealed twice, its newest seal. A snapshot as of `open`, usable while a
    run is writing, in threads, after a fork, and pickled into spawned workers (which open it anew)."""

    def __init__(self, path: Path, manifest: Manifest, *, check: bool) -> None:
        self.path = path
        self.manifest = manifest
        self.check = check
        self.rejects = read_rejects(path)
        self.problems: dict[str, StoreError] = {}
        self._codec = codec(manifest.codec)
        self.shards: list[ShardState] = []
        self._files = [ShardFile(folder, path) for folder in shards(path)]
        self._catalog = self._list()

    @classmethod
    def open(cls, path: Path | str, *, check: bool = False) -> Store:
        """`check` compares every tile read with its checksum. Raises StoreError when `path` is not a store of this
        format; a shard that can't be read is warned about and left out (see `problems`). Raises OpenFilesError
        where there are more shards than files that may be open."""
        store = cls.quietly(path, check=check)
        for problem in store.problems.values():
            warnings.warn(f"left out of the store: {problem}", stacklevel=2)
        for part in elsewhere(store.path):
            warnings.warn(
                f"left out of the store: {part}, which can't be seen from here; collect it with "
                f"`{shell_command('extractor', 'gather', store.path)}`",
                stacklevel=2,
            )
        return store

    @classmethod
    def quietly(cls, path: Path | str, *, check: bool = False) -> Store:
        """`open` for callers that look at `problems` (shard name -> error) themselves."""
        while True:
            store = cls(Path(path), Manifest.load(Path(path)), check=check)
            there = shards(store.path) if store.problems else []
            if all(store.file(name).path in there for name in store.problems):
                return store  # else a compact or a gather has moved shards since they were looked for: look again

    @property
    def shard_names(self) -> list[str]:
        """Of all shards, also of those that can't be listed."""
        return [file.path.name for file in self._files]

    def __len__(self) -> int:
        return len(self._catalog)

    def __iter__(self) -> Iterator[str]:
        return iter(self._catalog)

    def __contains__(self, sample_id: object) -> bool:
        return isinstance(sample_id, str) and self._catalog.find(sample_id) is not None

    def __getitem__(self, sample_id: str) -> StoredSample:
        """Raises MissingSampleError (a KeyError) naming the nearest ids."""
        return self.at(self._row(sample_id))

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.check)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N]: number of tokens of each sample, in the order of iteration."""
        return self._catalog.entries["num_tokens"].astype(np.int64)

    @property
    def stored_bytes(self) -> np.ndarray:
        """int64 [N]: bytes of each sample's tiles on disk, in the order of iteration."""
        return self._catalog.entries["stored_bytes"].astype(np.int64)

    def num_tokens(self, sample_id: str) -> int:
        """Without touching the sample's own bytes."""
        return int(self._catalog.entries["num_tokens"][self._row(sample_id)])

    def at(self, row: int) -> StoredSample:
        """The sample at place `row` of the order of iteration."""
        entry = self._catalog.entries[row]
        shard = self._files[int(self._catalog.shards[row])]
        seal = shard.seal(int(entry["seal_offset"]), int(entry["seal_bytes"]))
        return StoredSample(seal, shard, self.manifest, self._codec, check=self.check)

    def file(self, shard_name: str) -> ShardFile:
        """The shard's file, in whichever of the store's folders it lies; also of one that can't be listed."""
        return next(file for file in self._files if file.path.name == shard_name)

    def salvage(self, shard: ShardFile) -> Iterator[StoredSample]:
        """The samples found in a shard that can't be listed; their tiles are checked as they are read.
        Raises StoreError when the shard says that it is another store's."""
        require_own(fingerprint_in(shard) or self.manifest.fingerprint(), self.manifest.fingerprint(), shard.file)
        for seal in find_seals(shard):
            yield StoredSample(seal, shard, self.manifest, self._codec, check=True)

    def id_at(self, row: int) -> str:
        return self._catalog.sample_id(row)

    def listed(self, row: int) -> tuple[str, int, int]:
        """(id, tokens, bytes of the tiles on disk) of the sample at place `row`, without touching its own bytes."""
        entry = self._catalog.entries[row]
        return self.id_at(row), int(entry["num_tokens"]), int(entry["stored_bytes"])

    def place(self, row: int) -> tuple[str, int]:
        """(shard name, offset of the seal) of the sample at place `row`."""
        shard = self._files[int(self._catalog.shards[row])]
        return shard.path.name, int(self._catalog.entries["seal_offset"][row])

    def _row(self, sample_id: str) -> int:
        row = self._catalog.find(sample_id)
        if row is None:
            lost = f"; it may be in {', '.join(self.problems)}, which can't be read" if self.problems else ""
            raise MissingSampleError(
                f"{self.path} has no sample {sample_id!r} among its {len(self)}{lost}; list them with "
                f"`{shell_command('extractor', 'inspect', self.path, '--list')}`",
                partial(self._catalog.nearest, sample_id),
            )
        return row

    def _list(self) -> Catalog:
        lost = {reject.shard for reject in self.rejects if reject.seal_offset is None}
        listings: dict[int, Listing] = {}
        for index, file in enumerate(self._files):
            if file.path.name not in lost:
                self._try_listing(file, index, listings)
        catalog = Catalog.join(
            [(index, *_counted(listing, self._files[index], self.rejects)) for index, listing in listings.items()]
        )
        self.shards = [ShardState.of(self._files[i], listing, catalog, i) for i, listing in listings.items()]
        return catalog

    def _try_listing(self, file: ShardFile, index: int, listings: dict[int, Listing]) -> None:
        try:
            listings[index] = file.listing(self.manifest.fingerprint())
        except StoreError as error:
            self.problems[file.path.name] = error.to_keep()


def _counted(listing: Listing, file: ShardFile, rejects: list[Reject]) -> tuple[np.ndarray, bytes]:
    """The listing's (entries, ids) less the rejected seals."""
    offsets = {r.seal_offset for r in rejects if r.shard == file.path.name and r.seal_offset is not None}
    return without(listing.entries, listing.ids, offsets) if offsets else (listing.entries, listing.ids)


def _reopen(path: Path, check: bool) -> Store:
    return Store.open(path, check=check)
