"""One shard being written: an LMDB environment that only ever grows, in durable groups. Legend: a place is the byte
offset of a value in the data file, where readers fetch it without LMDB."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np

from extractor.errors import DiskFullError, StoreError
from extractor.manifest import Manifest
from extractor.record import FORMAT_VERSION, Seal, encode_index, encode_seal, index_entry, pages_of
from extractor.store import disk
from extractor.store.environments import TABLES, open_environment, page_of_value
from extractor.store.index import read_index
from extractor.store.layout import DATA_FILE, LOCK_FILE, publish
from extractor.store.tree import OVERFLOW, PAGE_HEADER, Tree

KEY = struct.Struct(">Q")
_NEW_BYTES = 1 << 18  # an empty shard's, and the tree pages that a group copies
_FEW_BLOCKS = 8  # are read as quickly as they are
_TREE_SHARE = 32  # a group's new tree pages are less than 1/32 of it: every value has a page of at least 4 KiB


class Shard:
    """Append-only: values go into the open group, `commit` makes the group durable and visible."""

    def __init__(self, path: Path, map_bytes: int, group_limit: int) -> None:
        self.path = path
        self._group_limit = group_limit
        self.group_bytes = 0
        self.stored_bytes = 0
        self._file = path / DATA_FILE
        with disk.writing(self._file, 0):
            self._env = open_environment(path, map_bytes)
        self._map_bytes = map_bytes
        self._fd = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
        self._page = int(self._env.stat()["psize"])
        self._tables = {name: self._env.open_db(name) for name in TABLES}
        self._next = dict.fromkeys(TABLES, 0)
        self._txn: Any = None
        self._places: list[tuple[int, int]] = []
        self._seals: list[tuple[Seal, bytes]] = []

    @classmethod
    def create(
        cls, store: Path, manifest: Manifest, owner: dict[str, str | int], map_bytes: int, group_limit: int
    ) -> Shard:
        """A new empty shard under the next free name. A crash at any point leaves it whole or absent.

        `map_bytes` is a guess of its size; groups have at most `group_limit` bytes or a single value.
        """
        building = store / f".new-{owner['run_id']}-{owner['writer']}-{os.getpid()}"
        about = {"format_version": FORMAT_VERSION, "fingerprint": manifest.fingerprint(), **owner}
        shutil.rmtree(building, ignore_errors=True)
        try:
            with disk.writing(store, _NEW_BYTES):
                building.mkdir()
                _fill_new(building, json.dumps(about), manifest.to_json())
                path = publish(store, building)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return cls(path, map_bytes, group_limit)

    def put_tile(self, value: np.ndarray | bytes) -> tuple[int, int]:
        """Copy a tile's stored bytes into the group; returns (key, offset)."""
        key, offset = self._put(b"tiles", value)
        self.stored_bytes += len(value)
        return key, offset

    def put_seal(self, seal: Seal) -> None:
        """Add a sample whose tiles are all in this shard; it exists once the group is committed."""
        value = encode_seal(seal)
        self._seals.append((seal, value))
        self.group_bytes += len(value)

    def commit(self) -> int:
        """Write the group and wait until it is on the disk; returns how many samples it sealed.

        Raises DiskFullError or StoreError, and then the group is gone while all earlier ones are intact.
        """
        sealed = len(self._seals)
        try:
            self._put_seals()
            needed = self.group_bytes + self.group_bytes // _TREE_SHARE + _NEW_BYTES
            if self._txn is not None:
                with disk.writing(self._file, needed):
                    disk.reserve(self._fd, self._data_bytes(), needed)
                    self._txn.commit()
                self._check_places()
        finally:
            self._forget_group()
        return sealed

    def sync(self) -> None:
        """Make the newest group's root durable too; until then a power cut may undo that one group."""
        with disk.writing(self._file, 0):
            self._env.sync(True)

    def summarise(self) -> None:
        """Repeat the whole index in one block, so that opening the shard takes a read and not one for each group. The
        last thing to be written; where there is no room for it, the shard is as whole without."""
        tree = Tree(self._fd, self._file)
        if tree.table(b"index").entries < _FEW_BLOCKS:
            return
        try:
            self._put(b"summary", encode_index(*read_index(tree, b"index", self._file)))
            self.commit()
        except DiskFullError:
            self._forget_group()

    def close(self) -> None:
        """Drop an open group, end the file where its data ends, and release the environment."""
        self._forget_group()
        size = self._data_bytes()
        self._env.close()
        try:
            with disk.writing(self._file, 0):
                os.ftruncate(self._fd, size)
                os.fsync(self._fd)
        finally:
            os.close(self._fd)
        (self.path / LOCK_FILE).unlink(missing_ok=True)

    def _put_seals(self) -> None:
        """All seals of the group as one value, as a page for each would be 0.1% of a sample of 4 MB; then the index."""
        if not self._seals:
            return
        values = [value for _, value in self._seals]
        _, start = self._put(b"seals", b"".join(values))
        offsets = start + np.cumsum([0, *map(len, values[:-1])])
        entries = [
            index_entry(seal, int(offset), len(value), self._page)
            for (seal, value), offset in zip(self._seals, offsets, strict=True)
        ]
        ids = "".join(seal.sample_id for seal, _ in self._seals).encode()
        self._put(b"index", encode_index(np.array(entries), ids))

    def _put(self, table: bytes, value: np.ndarray | bytes) -> tuple[int, int]:
        if len(value) < self._page // 2:  # so that every value has pages of its own, which never move
            value = bytes(value).ljust(self._page // 2, b"\0")
        if self._txn is None:
            self._make_room(len(value))
            self._txn = self._env.begin(write=True, buffers=True)
        key = self._next[table]
        with self._txn.cursor(self._tables[table]) as cursor:
            if not cursor.put(KEY.pack(key), value, append=True):
                raise StoreError(f"{self._file} already holds key {key} in {table!r}: it has a second writer; stop it")
            page = page_of_value(cursor)
        self._next[table] += 1
        self._places.append((page, len(value)))
        self.group_bytes += int(pages_of(len(value), self._page)) * self._page
        return key, page * self._page + PAGE_HEADER.size

    def _make_room(self, size: int) -> None:
        """Grow the map so that a group fits which starts with a value of `size` bytes. Between groups only."""
        group = 2 * max(self._group_limit, size, self.group_bytes)
        while self._map_bytes < self._data_bytes() + group + group // _TREE_SHARE + _NEW_BYTES:
            self._map_bytes *= 2
            self._env.set_mapsize(self._map_bytes)

    def _check_places(self) -> None:
        """Every value of the group stands where its seal says. Guards against an LMDB that lays pages out otherwise."""
        for page, size in self._places:
            number, _, flags, pages = PAGE_HEADER.unpack(os.pread(self._fd, PAGE_HEADER.size, page * self._page))
            if (number, flags, pages) != (page, OVERFLOW, pages_of(size, self._page)):
                raise StoreError(
                    f"page {page} of {self._file} is not laid out as expected; use the lmdb package >= 3.0"
                )

    def _data_bytes(self) -> int:
        return (int(self._env.info()["last_pgno"]) + 1) * self._page

    def _forget_group(self) -> None:
        if self._txn is not None:
            self._txn.abort()  # does nothing after a commit
        self._txn, self.group_bytes = None, 0
        self._places, self._seals = [], []


def _fill_new(path: Path, about: str, manifest: str) -> None:
    env = open_environment(path, _NEW_BYTES)
    try:
        tables = {name: env.open_db(name) for name in TABLES}
        with env.begin(write=True) as txn:
            txn.put(b"about", about.encode(), db=tables[b"shard"])
            txn.put(KEY.pack(0), manifest.encode(), db=tables[b"manifest"])
        env.sync(True)
    finally:
        env.close()
    disk.sync_folder(path)
