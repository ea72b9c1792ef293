"""Names inside a store folder, and the list of its shards."""

from __future__ import annotations

import os
import re
from pathlib import Path

from extractor.errors import StoreError
from extractor.store.disk import sync_folder, write_atomically
from extractor.store.parts import first_shard_number, parts
from extractor.store.rejects import read_rejects
from extractor.store.shard_names import shard_name, shard_number

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
_LIST = "shards.txt"
_TORN = re.compile(r"(s(h(a(r(d(-\d{0,3})?)?)?)?)?)?")


def shards(store: Path) -> list[Path]:
    """All shard folders, oldest first: those on disk, those that the list names (which may be lost), and those of the
    parts that can be seen from here. A shard that was gathered is taken from the store itself."""
    found = {folder.name: folder for part in parts(store) if part.visible for folder in shards(part.path)}
    numbers = {shard_number(entry.name) for entry in store.iterdir()} | listed(store)
    found |= {shard_name(number): store / shard_name(number) for number in numbers if number is not None}
    return sorted(found.values(), key=lambda folder: shard_number(folder.name) or 0)


def listed(store: Path) -> set[int]:
    """Numbers in `shards.txt`. A line that only begins as a name does is a write that a crash cut off, and is ignored,
    as is a last line without its end."""
    try:
        text = (store / _LIST).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return set()
    lines = [line for line in text.split("\n")[:-1] if not _TORN.fullmatch(line)]
    numbers = [shard_number(line) for line in lines]
    if None in numbers:
        bad = lines[numbers.index(None)]
        raise StoreError(
            f"{store / _LIST} has the line {bad!r}, expected names such as shard-0000; restore the file from a copy, "
            "or delete it if no shard folder is missing: those that are there are found without it"
        )
    return {number for number in numbers if number is not None}


def unlist(store: Path, names: set[str]) -> None:
    """Take shards out of the list, so that their absence is no loss."""
    numbers = [number for number in sorted(listed(store)) if shard_name(number) not in names]
    write_atomically(store / _LIST, "".join(shard_name(number) + "\n" for number in numbers))


def publish(store: Path, folder: Path) -> Path:
    """Give the finished new `folder` the next free shard name, durably. Several processes may do so at once."""
    number = _next_number(store)
    while True:
        target = store / shard_name(number)
        try:
            folder.rename(target)  # fails where another process was faster, as its folder is not empty
            break
        except OSError:
            if not target.exists():
                raise
            number += 1
    enlist(store, target.name)
    return target


def _next_number(store: Path) -> int:
    """Above all shards, and above those that are gone and still named by a reject, which would hold of the new one."""
    names = [folder.name for folder in shards(store)] + [reject.shard for reject in read_rejects(store)]
    numbers = [number for name in names if (number := shard_number(name)) is not None]
    return max(first_shard_number(store), max(numbers, default=-1) + 1)


def enlist(store: Path, name: str) -> None:
    """Add a shard that is in its place to the list, durably."""
    with (store / _LIST).open("ab+") as handle:
        if handle.tell() and os.pread(handle.fileno(), 1, handle.tell() - 1) != b"\n":
            handle.write(b"\n")  # what a crash cut off stays a line of its own
        handle.write(name.encode() + b"\n")
        handle.flush()
        os.fsync(handle.fileno())
    sync_folder(store)
