"""The samples of one or several stores as one list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from extractor.errors import FingerprintError, InputError, StoreError
from extractor.manifest import Manifest
from extractor.packing import Ints
from extractor.sizes import counted
from extractor.store import Store, StoredSample
from extractor.store.parts import require_all_here
from extractor.store.remedy import run_repair

Stores = Store | Path | str | Sequence[Store | Path | str]
_SHAPE_FIELDS = ("layer_ids", "num_layers", "hidden_size", "dtype", "model_config_hash")


class SampleSet:
    """ids [N] and lengths int64 [N] of sealed samples, in the stores' order; fixed once made, also in workers that open
    a store which has grown since."""

    def __init__(self, stores: Stores, only: Iterable[str] | None = None) -> None:
        """`only`: the ids to keep, in that order; else all, which must be readable. Raises StoreError when nothing is
        sealed or, without `only`, a shard can't be read or a part lies elsewhere; FingerprintError for stores of other
        layers, dtype or model, InputError for an id that stands in two stores or in none."""
        several = [stores] if isinstance(stores, Store | Path | str) else stores
        opened = [store if isinstance(store, Store) else Store.open(store) for store in several]
        if not opened:
            raise StoreError("there is no store to read; pass at least one")
        if only is None:
            require_whole(opened, "naming the samples: sample_ids=list(Store.open(...))")
        _require_same_rows(opened)
        self.manifest: Manifest = opened[0].manifest  # the others agree in what a row is
        self.paths = [store.path for store in opened]
        self._checks = [store.check for store in opened]
        self._opened: list[Store] | None = opened
        self.ids = [sample_id for store in opened for sample_id in store]
        self.lengths: Ints = np.concatenate([store.lengths for store in opened])
        self._store_of = np.repeat(np.arange(len(opened)), [len(store) for store in opened])
        _require_distinct(self.ids, self._store_of, self.paths)
        if only is not None:
            self._keep(list(only))
        if not self.ids:
            raise StoreError(
                f"{self._names()} holds no sealed sample; wait for the run that writes it, or start one with "
                "`extractor extract`"
            )

    def __len__(self) -> int:
        return len(self.ids)

    def __getstate__(self) -> dict[str, Any]:
        """Without the open stores: a worker opens them at its first read, where an error reaches the trainer."""
        return {**self.__dict__, "_opened": None}

    @cached_property
    def digest(self) -> str:
        """Hash of ids and lengths: two processes with the same one agree on every batch."""
        state = xxhash.xxh3_64(self.lengths.tobytes())
        for sample_id in self.ids:
            state.update(sample_id.encode() + b"\0")
        return state.hexdigest()

    def __getitem__(self, number: int) -> StoredSample:
        """Raises CorruptError for a damaged sample or a disk that fails, StoreError when the store is gone."""
        return self._stores()[int(self._store_of[number])][self.ids[number]]

    def _stores(self) -> list[Store]:
        if self._opened is None:
            self._opened = [Store.open(path, check=c) for path, c in zip(self.paths, self._checks, strict=True)]
        return self._opened

    def _names(self) -> str:
        return ", ".join(map(str, self.paths))

    def _keep(self, only: list[str]) -> None:
        places = {sample_id: number for number, sample_id in enumerate(self.ids)}
        missing = [sample_id for sample_id in only if sample_id not in places]
        if missing:
            raise InputError(
                f"sample {missing[0]!r} is not sealed in {self._names()} ({len(missing)} such of {len(only)}); "
                f"{_lost(self._opened or [])}extract it first, or leave it out of the ids"
            )
        kept = np.array([places[sample_id] for sample_id in only], np.int64)
        self.ids, self.lengths, self._store_of = only, self.lengths[kept], self._store_of[kept]


def _lost(stores: Sequence[Store]) -> str:
    names = [str(store.path / name) for store in stores for name in store.problems]
    return f"it may be in {', '.join(names)}, which can't be read; " if names else ""


def require_whole(stores: Sequence[Store], otherwise: str) -> None:
    """Fewer samples than there are, perhaps others on each rank, must not go unnoticed. Raises StoreError, which tells
    how to go on without them: repair the store, or do what `otherwise` says where that is not empty."""
    for store in stores:
        if store.problems:
            name, problem = next(iter(store.problems.items()))
            way_out = f", or go on without them by {otherwise}" if otherwise else ", and go on with the others"
            raise StoreError(
                f"{counted(len(store.problems), 'shard')} of {store.path} can't be read: {', '.join(store.problems)} "
                f"({name}: "
                f"{problem.problem}); their samples would be missing; {run_repair(store.path)}{way_out}"
            )
        require_all_here(store.path, "reading every sample")


def _require_same_rows(stores: Sequence[Store]) -> None:
    first = stores[0]
    for other in stores[1:]:
        for field in _SHAPE_FIELDS:
            ours, theirs = getattr(first.manifest, field), getattr(other.manifest, field)
            if ours != theirs:
                raise FingerprintError(
                    f"{first.path} and {other.path} can't be read as one: {field} is {ours!r} and {theirs!r}; rows of "
                    "one batch must mean the same; read them apart"
                )


def _require_distinct(ids: list[str], store_of: Ints, paths: Sequence[Path]) -> None:
    if len(set(ids)) == len(ids):
        return
    first_place: dict[str, int] = {}
    for number, sample_id in enumerate(ids):
        if sample_id in first_place:
            a, b = paths[store_of[first_place[sample_id]]], paths[store_of[number]]
            raise InputError(
                f"sample {sample_id!r} is in {a} and in {b}; it would be trained on twice; pass one of the "
                "stores, or make a store of both"
            )
        first_place[sample_id] = number
