"""A part's files where they lie: what `gather` asks the host that holds them. Plain functions, run there."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

import xxhash

from extractor.errors import StoreError
from extractor.manifest import Manifest
from extractor.store.layout import DATA_FILE, shards
from extractor.store.lock import require_no_writers
from extractor.store.shard_names import shard_number

_READ_BYTES = 16 << 20


def list_part(path: Path, fingerprint: str, without: Collection[str]) -> list[tuple[str, int]]:
    """(shard name, bytes) of every shard but those named. Raises StoreError when a run is writing, a shard's file is
    gone, or it is another store's part."""
    require_no_writers(path, "gathering")
    if Manifest.load(path).fingerprint() != fingerprint:
        raise StoreError(f"{path} belongs to another store; restore the folder that the store's parts.jsonl names")
    return [(folder.name, _size(folder / DATA_FILE)) for folder in shards(path) if folder.name not in without]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        raise StoreError(
            f"{file} is gone; restore it from a copy, or give its samples up with `extractor verify STORE --repair`, "
            "where STORE is the store that it is a part of"
        ) from None


def read_part(path: Path, shard: str, offset: int, size: int) -> bytes:
    """`size` bytes of a shard's data file; fewer at its end."""
    with (path / shard / DATA_FILE).open("rb") as handle:
        handle.seek(offset)
        return handle.read(size)


def file_checksum(file: Path) -> str:
    """xxh3 (128 bits) of the whole file."""
    state = xxhash.xxh3_128()
    with file.open("rb") as handle:
        while data := handle.read(_READ_BYTES):
            state.update(data)
    return state.hexdigest()


def part_checksum(path: Path, shard: str) -> str:
    return file_checksum(path / shard / DATA_FILE)


def empty_part(path: Path) -> None:
    """Delete the shards. The rest still says what the folder is."""
    for folder in path.iterdir():
        if shard_number(folder.name) is not None:
            shutil.rmtree(folder)


def delete_part(path: Path) -> None:
    shutil.rmtree(path)
