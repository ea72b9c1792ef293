"""Making a store, or making sure that an existing one is the run's own."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from pathlib import Path

from extractor.errors import StoreError
from extractor.manifest import NAME, Manifest
from extractor.sizes import counted
from extractor.store.disk import network_kind, sync_folder, write_atomically
from extractor.store.layout import shards
from extractor.store.lock import live_writers
from extractor.store.parts import parts
from extractor.store.reader import Store


def prepare_store(path: Path | str, manifest: Manifest) -> Store:
    """Create the store at `path`, or open the one there to resume it.

    Raises StoreError when the folder holds something else or a shard can't be opened, FingerprintError when the store
    was written by another configuration. Nothing that is already there is touched, but for the manifest of a store
    that never got a shard: a run that could not start shall not stand in the way of the corrected one.
    """
    path = Path(path)
    if not (path / NAME).exists():
        _create(path, manifest)
    elif shards(path) or parts(path) or live_writers(path):
        Manifest.load(path).require_same(manifest, path)
    elif Manifest.load(path).differences(manifest):
        write_atomically(path / NAME, manifest.to_json())
    _warn_of_network(path)
    store = Store.quietly(path)
    for problem in store.problems.values():
        raise type(problem)(f"{problem} ({counted(len(store.problems), 'shard')} of {path} can't be opened)")
    return store


def _create(path: Path, manifest: Manifest) -> None:
    """The folder appears with its manifest in it; an empty folder that is already there is filled."""
    if path.exists():
        _require_empty(path)
        write_atomically(path / NAME, manifest.to_json())
        return
    parent = path.resolve().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=parent))
    except OSError as error:
        raise StoreError(f"store {path} can't be made: {error}; pass a folder that you may write to") from error
    try:
        building.chmod(0o777 & ~_umask())
        write_atomically(building / NAME, manifest.to_json())
        building.rename(path)
        sync_folder(parent)
    except OSError as error:
        shutil.rmtree(building, ignore_errors=True)
        raise StoreError(f"store {path} can't be made: {error}; free space or pass another folder") from error


def _require_empty(path: Path) -> None:
    if not path.is_dir():
        raise StoreError(f"{path} is a file; a store is a folder; pass another --out")
    found = sorted(entry.name for entry in path.iterdir())
    if shards(path):
        Manifest.load(path)  # says what to do
    if found:
        raise StoreError(
            f"{path} holds something else ({', '.join(found[:3])}{', ...' if len(found) > 3 else ''}) and no {NAME}; "
            "pass an empty or new folder with --out"
        )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _warn_of_network(path: Path) -> None:
    kind = network_kind(path)
    if kind:
        warnings.warn(
            f"{path} lies on a network file system ({kind}), where LMDB's locks and maps are not reliable and a server "
            "may report writes as durable that are not; write to a local disk and copy finished stores",
            stacklevel=3,
        )
