"""The samples of one or several stores as one list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import xxhash

from extractor.errors import FingerprintError, InputError, StoreError
from extractor.manifest import Manifest
from extractor.packing import Ints
from extractor.store import Store, StoredSample

Stores = Store | Path | str | Sequence[Store | Path | str]
_SHAPE_FIELDS = ("layer_ids", "num_layers", "hidden_size", "dtype", "model_config_hash")


class SampleSet:
    """ids [N] and lengths int64 [N] of sealed samples, in the stores' order; fixed once made, also in workers that open
    a store which has grown since."""

    def __init__(self, stores: Stores, only: Iterable[str] | None = None) -> None:
        """`only`: the ids to keep, in that order. Raises StoreError when nothing is sealed, FingerprintError for stores
        of other layers, dtype or model, InputError for an id that stands in two stores or in none."""
        several = [stores] if isinstance(stores, Store | Path | str) else stores
        self.stores = [store if isinstance(store, Store) else Store.open(store) for store in several]
        if not self.stores:
            raise StoreError("there is no store to read; pass at least one")
        _require_same_rows(self.stores)
        self.ids = [sample_id for store in self.stores for sample_id in store]
        self.lengths: Ints = np.concatenate([store.lengths for store in self.stores])
        self._store_of = np.repeat(np.arange(len(self.stores)), [len(store) for store in self.stores])
        _require_distinct(self.ids, self._store_of, self.stores)
        if only is not None:
            self._keep(list(only))
        if not self.ids:
            raise StoreError(
                f"{_names(self.stores)} holds no sealed sample; wait for the run that writes it, or start one with "
                "`extractor extract`"
            )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def manifest(self) -> Manifest:
        """Of the first store; the others agree in what a row is."""
        return self.stores[0].manifest

    @cached_property
    def digest(self) -> str:
        """Hash of ids and lengths: two processes with the same one agree on every batch."""
        state = xxhash.xxh3_64(self.lengths.tobytes())
        for sample_id in self.ids:
            state.update(sample_id.encode() + b"\0")
        return state.hexdigest()

    def __getitem__(self, number: int) -> StoredSample:
        """Raises CorruptError for a damaged sample, StoreError when the store is gone."""
        store = self.stores[int(self._store_of[number])]
        try:
            return store[self.ids[number]]
        except OSError as error:
            raise gone(store.path, error) from error

    def _keep(self, only: list[str]) -> None:
        places = {sample_id: number for number, sample_id in enumerate(self.ids)}
        missing = [sample_id for sample_id in only if sample_id not in places]
        if missing:
            raise InputError(
                f"sample {missing[0]!r} is not sealed in {_names(self.stores)} ({len(missing)} such of {len(only)}); "
                "extract it first, or leave it out of the ids"
            )
        kept = np.array([places[sample_id] for sample_id in only], np.int64)
        self.ids, self.lengths, self._store_of = only, self.lengths[kept], self._store_of[kept]


def gone(path: Path, error: OSError) -> StoreError:
    return StoreError(f"store {path} can't be read any more ({error}); was it moved or deleted? restore it and resume")


def _names(stores: Sequence[Store]) -> str:
    return ", ".join(str(store.path) for store in stores)


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


def _require_distinct(ids: list[str], store_of: Ints, stores: Sequence[Store]) -> None:
    if len(set(ids)) == len(ids):
        return
    first_place: dict[str, int] = {}
    for number, sample_id in enumerate(ids):
        if sample_id in first_place:
            a, b = stores[store_of[first_place[sample_id]]].path, stores[store_of[number]].path
            raise InputError(
                f"sample {sample_id!r} is in {a} and in {b}; it would be trained on twice; pass one of the "
                "stores, or make a store of both"
            )
        first_place[sample_id] = number
