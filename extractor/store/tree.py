"""Reading the tables of an LMDB data file (format of LMDB 0.9) by `pread`.

LMDB itself reads through a map, where a damaged page number or a file that was cut off ends the process by SIGBUS,
where a fork or a second open of the same file needs care, and where a lock file must be writable. A store only needs to
list a small table once, so it walks the few pages of that table itself; every page is checked before it is used.

A running writer may reuse a page of the tree, at the earliest in the third commit after the one that is being read;
`Tree.is_current` tells whether that may have happened.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from extractor.errors import CorruptError

PAGE_HEADER = struct.Struct("<QHHI")  # page number, unused, flags, pages: stands before every value with own pages
OVERFLOW = 0x04  # the page flag of such values
LEAF = 0x02
_BRANCH, _META = 0x01, 0x08
_BIG_VALUE, _TABLE = 0x01, 0x02  # flags of a leaf's node
_META_RECORD = struct.Struct(
    "<IIQQ48s48sQQ"
)  # magic, version, address, map size, free table, main table, last page, txn
_TABLE_RECORD = struct.Struct("<IHHQQQQQ")  # page bytes, flags, depth, branch, leaf, overflow pages, entries, root
_NODE = struct.Struct("<HHHH")  # low and high half of size or page number, flags (or its bits 32-47), key length
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_EMPTY = 2**64 - 1
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Table:
    """A named table: its number of entries, the pages of its big values, and the page of its root."""

    entries: int
    value_pages: int
    root: int


class Tree:
    """The newest committed state of a data file. Raises CorruptError where a page is not what it should be."""

    def __init__(self, fd: int, file: Path) -> None:
        self._fd = fd
        self._file = file
        roots = [self._root(0, mmap.PAGESIZE)]
        self.page_bytes = int(_TABLE_RECORD.unpack(roots[0][4])[0])
        if self.page_bytes.bit_count() != 1 or not 512 <= self.page_bytes <= 65536:
            raise self._damaged(f"pages of {self.page_bytes} bytes")
        roots.append(self._root(1, self.page_bytes))
        newest = max(roots, key=lambda root: int(root[7]))
        # Roots are written in turn, so a damaged number shows; LMDB would quietly go back to an older state.
        if int(newest[7]) > 0 and (roots[0][7] % 2, roots[1][7] % 2, abs(roots[0][7] - roots[1][7])) != (0, 1, 1):
            raise self._damaged(f"roots numbered {roots[0][7]} and {roots[1][7]}")
        self._transaction = int(newest[7])
        self.data_bytes = (int(newest[6]) + 1) * self.page_bytes
        self.file_bytes = os.fstat(fd).st_size
        if self.file_bytes < self.data_bytes:
            raise CorruptError(
                f"{file} is {self.file_bytes:,} bytes, its data needs {self.data_bytes:,}; it was cut off",
                "restore it from a copy",
            )
        main = _table(newest[5])
        self._tables = {key: _table(value) for key, value, _ in self._entries(main.root, _TABLE)}

    def is_current(self) -> bool:
        """Whether no page read so far can have been reused since."""
        newest = max(int(self._root(n, self.page_bytes)[7]) for n in (0, 1))
        return newest <= self._transaction + 1

    def has(self, name: bytes) -> bool:
        """Whether there is a named table with entries."""
        return name in self._tables and self._tables[name].entries > 0

    def table(self, name: bytes) -> Table:
        if name not in self._tables:
            raise self._damaged(f"no table {name.decode()!r}")
        return self._tables[name]

    def values(self, name: bytes) -> list[bytes]:
        """The values of a named table, in the order of its keys."""
        table = self.table(name)
        entries = list(self._entries(table.root, 0))
        if len(entries) != table.entries:  # a page that has lost some looks like a smaller one
            raise self._damaged(f"{len(entries)} entries in the table {name.decode()!r} of {table.entries}")
        # A link that leads to another page of the same kind hides what it led to.
        keys = [key for key, *_ in entries]
        places = [place for *_, place in entries if place is not None]
        if any(first >= second for first, second in pairwise(keys)) or len(set(places)) < len(places):
            raise self._damaged(f"entries of the table {name.decode()!r} out of order or twice")
        return [value for _, value, _ in entries]

    def _entries(self, root: int, wanted_flag: int) -> Iterator[tuple[bytes, bytes, int | None]]:
        """(key, value, page of a value that has its own) of every leaf node below `root` that has the flag."""
        stack = [(root, 0)] if root != _EMPTY else []
        while stack:
            number, depth = stack.pop()
            page = self._page(number, _BRANCH | LEAF)
            is_branch = bool(PAGE_HEADER.unpack_from(page)[2] & _BRANCH)
            if depth > _MAX_DEPTH:
                raise self._damaged("a tree that is deeper than any")
            children = []
            try:
                nodes = list(page_nodes(page))
            except ValueError as error:
                raise self._damaged(f"{error} on page {number}") from None
            for low, high, flags, key_bytes, at in nodes:
                if is_branch:
                    children.append((low | high << 16 | flags << 32, depth + 1))
                elif flags & wanted_flag == wanted_flag:
                    value, place = self._value(page, at + key_bytes, low | high << 16, flags)
                    yield page[at : at + key_bytes], value, place
            stack += reversed(children)

    def _value(self, page: bytes, at: int, size: int, flags: int) -> tuple[bytes, int | None]:
        if not flags & _BIG_VALUE:
            return page[at : at + size], None
        (number,) = struct.unpack_from("<Q", page.ljust(at + 8, b"\0"), at)
        pages = -(-(size + PAGE_HEADER.size) // self.page_bytes)
        if (number + pages) * self.page_bytes > self.data_bytes:
            raise self._damaged(f"a value on pages {number} to {number + pages - 1}")
        data = self._read(size + PAGE_HEADER.size, number * self.page_bytes)
        if PAGE_HEADER.unpack_from(data)[0] != number or not PAGE_HEADER.unpack_from(data)[2] & OVERFLOW:
            raise self._damaged(f"no value on page {number}")
        return data[PAGE_HEADER.size :], number

    def _page(self, number: int, flags: int) -> bytes:
        if (number + 1) * self.page_bytes > self.data_bytes:
            raise self._damaged(f"a link to page {number}, beyond its end")
        page = self._read(self.page_bytes, number * self.page_bytes)
        found, _, found_flags, _ = PAGE_HEADER.unpack_from(page.ljust(PAGE_HEADER.size, b"\0"))
        if found != number or not found_flags & flags or len(page) < self.page_bytes:
            raise self._damaged(f"a damaged page {number}")
        return page

    def _root(self, number: int, page_bytes: int) -> tuple[int, int, int, int, bytes, bytes, int, int]:
        data = self._read(PAGE_HEADER.size + _META_RECORD.size, number * page_bytes)
        if len(data) < PAGE_HEADER.size + _META_RECORD.size:
            raise self._damaged("no root: it is shorter than two pages")
        root: tuple[int, int, int, int, bytes, bytes, int, int] = _META_RECORD.unpack_from(data, PAGE_HEADER.size)
        if root[0] != _MAGIC or root[1] != _VERSION or not PAGE_HEADER.unpack_from(data)[2] & _META:
            raise self._damaged(f"a damaged root page {number} or another LMDB's format")
        return root

    def _read(self, size: int, offset: int) -> bytes:
        """Fewer than `size` bytes at the file's end."""
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            raise unreadable(self._file, offset, size, error) from error

    def _damaged(self, what: str) -> CorruptError:
        return CorruptError(f"{self._file} has {what}", "restore it from a copy")


def page_nodes(page: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """(low, high, flags, key length, offset of the key) of each node of a branch or leaf. Raises ValueError."""
    (lower,) = struct.unpack_from("<H", page, 12)
    count = (lower - PAGE_HEADER.size) // 2
    if not 0 <= count < len(page) // 4:
        raise ValueError(f"{count} entries")
    for at in struct.unpack_from(f"<{count}H", page, PAGE_HEADER.size):
        if at + _NODE.size > len(page):
            raise ValueError("an entry that ends outside")
        yield (*_NODE.unpack_from(page, at), at + _NODE.size)


def unreadable(file: Path, offset: int, size: int, error: OSError) -> CorruptError:
    """The error of a read that the disk refused."""
    return CorruptError(
        f"{size:,} bytes at byte {offset} of {file} can't be read: {error}", "check the disk (dmesg, smartctl)"
    )


def _table(record: bytes) -> Table:
    _, _, _, _, _, overflow, entries, root = _TABLE_RECORD.unpack(
        record[: _TABLE_RECORD.size].ljust(_TABLE_RECORD.size)
    )
    return Table(entries=entries, value_pages=overflow, root=root)
