"""The store as a read-only mapping from sample id to sample."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from extractor.errors import StoreError
from extractor.manifest import Manifest
from extractor.store.catalog import Catalog
from extractor.store.codec import codec
from extractor.store.layout import shards
from extractor.store.sample import StoredSample
from extractor.store.shard_file import ShardFile


class MissingSampleError(StoreError, KeyError):
    """A sample id that the store does not hold."""

    def __str__(self) -> str:
        return str(self.args[0])


class Store(Mapping[str, StoredSample]):
    """Sealed samples only; where a sample was sealed twice, its newest seal. A snapshot as of `open`, usable while a
    run is writing, in threads, after a fork, and pickled into spawned workers (which open it anew)."""

    def __init__(self, path: Path, manifest: Manifest, *, check: bool) -> None:
        self.path = path
        self.manifest = manifest
        self.check = check
        self.problems: list[StoreError] = []
        self._codec = codec(manifest.codec)
        self._shards = [ShardFile(folder) for folder in shards(path)]
        self._catalog = self._list()

    @classmethod
    def open(cls, path: Path | str, *, check: bool = False) -> Store:
        """`check` compares every tile read with its checksum. Raises StoreError when `path` is not a store of this
        format; a shard that can't be opened is warned about and left out (see `problems`)."""
        store = cls(Path(path), Manifest.load(Path(path)), check=check)
        for problem in store.problems:
            warnings.warn(f"left out of the store: {problem}", stacklevel=2)
        return store

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
        shard = self._shards[int(self._catalog.shards[row])]
        seal = shard.seal(int(entry["seal_offset"]), int(entry["seal_bytes"]))
        return StoredSample(seal, shard, self._codec, self.manifest.row_shape, self.manifest.dtype, check=self.check)

    def _row(self, sample_id: str) -> int:
        row = self._catalog.find(sample_id)
        if row is None:
            near = ", ".join(repr(name) for name in self._catalog.nearest(sample_id)) or "none alike"
            raise MissingSampleError(
                f"{self.path} has no sample {sample_id!r} among its {len(self)}; nearest: {near}; list them with "
                "`extractor inspect --json`"
            )
        return row

    def _list(self) -> Catalog:
        parts = []
        for index, shard in enumerate(self._shards):
            try:
                parts.append((index, *shard.list_samples(self.manifest.fingerprint())))
            except StoreError as error:
                self.problems.append(error)
        return Catalog.join(parts)


def _reopen(path: Path, check: bool) -> Store:
    return Store.open(path, check=check)
