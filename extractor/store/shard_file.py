"""Reading a shard: its list of samples once, everything else by `preadv` at recorded offsets.

No map of the file is made, so nothing a reader holds can dangle, forks are safe, and a running writer does not mind:
a sealed value never moves. On hosts with the usual 128 KiB of readahead this is also 2.5 times faster, cold, than
faulting a map in.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from extractor.errors import CorruptError, StoreError
from extractor.record import Seal, decode_seal, pages_of
from extractor.store.description import decode_description
from extractor.store.index import read_index
from extractor.store.layout import DATA_FILE, LOCK_FILE
from extractor.store.neighbours import Place, buffers, runs
from extractor.store.opening import open_to_read
from extractor.store.remedy import naming_repair
from extractor.store.tree import OVERFLOW, PAGE_HEADER, Tree, unreadable

_ATTEMPTS = 8  # at listing a shard that is being written
_PIECE_BYTES = 512 << 10  # half of a usual core's own cache


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """What a shard says it holds. entries ENTRY [N] in the order of sealing; ids: their UTF-8 bytes end to end; about:
     run_id, writer, fingerprint, format_version; data_bytes: where the data ends; tile_pages: of all tiles,
    sealed or not."""

    about: dict[str, Any]
    entries: np.ndarray
    ids: bytes
    page_bytes: int
    data_bytes: int
    file_bytes: int
    tile_pages: int


class ShardFile:
    """A shard's data file. Safe to share between threads and forked processes."""

    def __init__(self, path: Path, store: Path | None = None) -> None:
        """`store`: the one that errors advise to repair; None: the folder that the shard lies in."""
        self.path = path
        self.store = path.parent if store is None else store
        self.file = path / DATA_FILE
        self.page_bytes = 0  # known once listed
        self._fd: int | None = None
        self._guard = threading.Lock()

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def listing(self, fingerprint: str) -> Listing:
        """Raises StoreError for another store's shard, CorruptError for one that can't be read, OpenFilesError when no
        further file may be opened."""
        with naming_repair(self.store):
            return self._listing_at_rest(fingerprint)

    def _listing_at_rest(self, fingerprint: str) -> Listing:
        for attempt in range(_ATTEMPTS):
            time.sleep(0.01 * attempt)
            try:
                tree = self.tree()
                listing = self._listing(tree, fingerprint)
            except CorruptError:  # or pages that the writer reused while they were read
                if attempt == _ATTEMPTS - 1 or not (self.path / LOCK_FILE).exists():
                    raise
                continue
            if tree.is_current():
                return listing
        raise StoreError(f"{self.file} changes faster than it can be listed; try again when its run has ended")

    def _listing(self, tree: Tree, fingerprint: str) -> Listing:
        about = decode_description(b"".join(tree.values(b"shard")), self.file, fingerprint)
        entries, ids = self._index(tree)
        self.page_bytes = tree.page_bytes
        return Listing(
            about=about,
            entries=entries,
            ids=ids,
            page_bytes=tree.page_bytes,
            data_bytes=tree.data_bytes,
            file_bytes=tree.file_bytes,
            tile_pages=tree.table(b"tiles").value_pages,
        )

    def tree(self) -> Tree:
        """Its newest committed state. Raises CorruptError when it has none that can be read."""
        return Tree(self._descriptor(), self.file)

    def _index(self, tree: Tree) -> tuple[np.ndarray, bytes]:
        """From the summary of a shard that was closed, where it is whole; else from the blocks that it repeats."""
        if tree.has(b"summary"):
            with contextlib.suppress(CorruptError):
                return read_index(tree, b"summary", self.file)
        return read_index(tree, b"index", self.file)

    def seal(self, offset: int, size: int) -> Seal:
        """The seal at `offset`. Raises CorruptError when it is not whole."""
        data = np.empty(size, np.uint8)
        with naming_repair(self.store):
            self.read_part(data, offset)
            return decode_seal(data.data, f"the seal at byte {offset} of {self.file}")

    def read_value(self, out: np.ndarray, offset: int, look_at: Callable[[memoryview], object] | None = None) -> None:
        """Fill out uint8 [n] with the whole value at `offset`; its page header is checked on the way. `look_at` gets
        the bytes in order, piece by piece, while they are in the cache."""
        header = bytearray(PAGE_HEADER.size)
        piece = out[: out.size if look_at is None else _PIECE_BYTES]
        self._read([header, piece.data], offset - PAGE_HEADER.size, piece.size + PAGE_HEADER.size)
        self._check_header(header, out.size, offset)
        if look_at is None:
            return
        look_at(piece.data)
        for start in range(piece.size, out.size, _PIECE_BYTES):
            piece = out[start : start + _PIECE_BYTES]
            self.read_part(piece, offset + start)
            look_at(piece.data)

    def read_values(self, places: list[Place]) -> None:
        """`read_value` for several; neighbours are read at once, so that a cold disk is not idle in between."""
        for run in runs(places, self.page_bytes):
            if len(run) == 1 or not self._read_at_once(run):
                for out, offset in run:  # says what is wrong, and where
                    self.read_value(out, offset)

    def _read_at_once(self, run: list[Place]) -> bool:
        headers, parts = buffers(run, self.page_bytes)
        try:
            got = os.preadv(self._descriptor(), parts, run[0][1] - PAGE_HEADER.size)
        except OSError:
            return False
        if got < sum(map(len, parts)):
            return False
        for header, (out, offset) in zip(headers, run, strict=True):
            self._check_header(header, out.size, offset)
        return True

    def _check_header(self, header: bytearray, size: int, offset: int) -> None:
        number, _, flags, pages = PAGE_HEADER.unpack(header)
        place = number * self.page_bytes + PAGE_HEADER.size
        if place != offset or flags != OVERFLOW or pages < pages_of(size, self.page_bytes):
            raise CorruptError(
                f"byte {offset} of {self.file} does not hold a value of {size:,} bytes; the file is damaged or was "
                "rewritten by another tool"
            )

    def read_part(self, out: np.ndarray, offset: int) -> None:
        """Fill out uint8 [n] with the bytes from `offset` on, unchecked."""
        self._read([out.data], offset, out.size)

    def _read(self, buffers: list[bytearray | memoryview], offset: int, size: int) -> None:
        try:
            got = os.preadv(self._descriptor(), buffers, offset)
            while 0 < got < size:  # a signal, or the 2 GiB limit of one call
                more = os.preadv(self._descriptor(), [buffers[-1][got - size :]], offset + got)
                if more == 0:
                    break
                got += more
        except OSError as error:
            raise unreadable(self.file, offset, size, error) from error
        if got < size:
            raise CorruptError(f"{self.file} ends before byte {offset + size:,}; it was cut off")

    def _descriptor(self) -> int:
        if self._fd is None:
            with self._guard:
                if self._fd is None:
                    self._fd = open_to_read(self.file, self.store)
        return self._fd
