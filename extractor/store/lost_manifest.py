"""A store without its manifest: each shard holds a copy."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from extractor.errors import CorruptError, StoreError
from extractor.manifest import NAME, Manifest
from extractor.store.disk import write_atomically
from extractor.store.layout import shards
from extractor.store.lock import RunLock
from extractor.store.shard_file import ShardFile


def restore_manifest(store: Path) -> str | None:
    """Where the manifest is lost or damaged, write it anew from the shards; returns the name of one that has it, None
    where nothing is to be done. Raises StoreError when no shard has a copy, the copies differ, or a run is writing."""
    try:
        Manifest.load(store)
    except CorruptError:
        with RunLock(store, shared=False):
            return _restore(store)
    return None


def _restore(store: Path) -> str:
    copies: dict[str, tuple[str, Manifest]] = {}
    for folder in shards(store):
        with contextlib.suppress(StoreError):  # that shard's own damage, which is named once the store can be opened
            manifest = _copy_in(ShardFile(folder))
            copies.setdefault(manifest.fingerprint(), (folder.name, manifest))
    if len(copies) != 1:
        names = ", ".join(name for name, _ in copies.values())
        raise StoreError(
            f"{store} has no readable {NAME}, and "
            + (f"its shards are of different stores ({names}); move the foreign ones away" if names else _NO_COPY)
        )
    ((name, manifest),) = copies.values()
    write_atomically(store / NAME, manifest.to_json())
    return name


_NO_COPY = (
    "no shard has a copy that can be read; restore it from a copy of the store, or start the same run in another "
    "folder, end it once its manifest is there, and copy that"
)


def _copy_in(shard: ShardFile) -> Manifest:
    """Raises StoreError where there is none, or it can't be read."""
    raw = b"".join(shard.tree().values(b"manifest"))
    try:
        return Manifest.of_json(json.loads(raw), shard.file)
    except ValueError as error:  # StoreErrors are such, too
        raise CorruptError(f"the manifest in {shard.file} is damaged: {error}") from error
