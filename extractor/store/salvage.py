"""Finding a shard's samples without LMDB, from the values themselves: for shards whose tree or root is damaged.

Every value has pages of its own and starts with a page header; a seal says where its tiles are and what they sum to.
Each page is looked at: how many pages a value has is not believed, as a damaged number would hide its neighbours.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import struct
from collections.abc import Iterator
from itertools import chain, pairwise

import numpy as np

from extractor.errors import CorruptError
from extractor.record import SEAL_MAGIC, Seal, decode_seal, encode_seal
from extractor.store.shard_file import ShardFile
from extractor.store.tree import LEAF, OVERFLOW, PAGE_HEADER, page_nodes

_META_PAGE_SIZE_AT = 40
_META_MAGIC_AT = 16
_META_MAGIC = 0xBEEFC0DE
_FINGERPRINT = re.compile(rb'"fingerprint": "(.{16})', re.DOTALL)
_ABOUT_WITHIN_BYTES = 1 << 18
_CHUNK_PAGES = 1024


def find_seals(shard: ShardFile) -> Iterator[Seal]:
    """Seals that match their checksum, in file order; whether their tiles do is for the caller to see. Leftovers of a
    killed run may be among them: they were whole when written, or their tiles' checksums tell."""
    with shard.file.open("rb") as handle:
        fd = handle.fileno()
        size, page_bytes = os.fstat(fd).st_size, _page_bytes(fd)
        shard.page_bytes = page_bytes
        for (page, is_seals), (end, _) in pairwise(chain(_numbered_pages(fd, size, page_bytes), [(-1, False)])):
            if is_seals:
                start = page * page_bytes + PAGE_HEADER.size
                stop = size if end < 0 else end * page_bytes
                yield from _seals(_read(fd, start, stop - start), shard)


def fingerprint_in(shard: ShardFile) -> str | None:
    """Of the store that the shard was written for, as its description says, wherever that stands; None where no
    description can be found. It is written once, with the new shard, so it stands near the beginning."""
    with shard.file.open("rb") as handle:
        fd = handle.fileno()
        page_bytes = _page_bytes(fd)
        for number in range(_ABOUT_WITHIN_BYTES // page_bytes):
            found = _FINGERPRINT.search(_described(_read(fd, number * page_bytes, page_bytes), number))
            if found:
                return found[1].decode("latin-1")
    return None


def _described(page: bytes, number: int) -> bytes:
    """The description if the page holds it as an entry. LMDB does not clear its pages: between the entries stands what
    the writer's memory held before, other stores' descriptions among it."""
    found, _, flags, _ = PAGE_HEADER.unpack_from(page)
    if (found, flags) != (number, LEAF):
        return b""
    with contextlib.suppress(ValueError):
        for low, high, _, key_bytes, at in page_nodes(page):
            if page[at : at + key_bytes] == b"about":
                return page[at + key_bytes :][: low | high << 16]
    return b""


def _numbered_pages(fd: int, size: int, page_bytes: int) -> Iterator[tuple[int, bool]]:
    """(page, whether it starts a value of seals) of all pages that carry their own number: the inner ones of a value
    don't, so a value ends before the next that does."""
    head = np.dtype(
        {
            "names": ["number", "flags", "mark"],
            "formats": ["<u8", "<u2", f"S{len(SEAL_MAGIC)}"],
            "offsets": [0, 10, PAGE_HEADER.size],
            "itemsize": page_bytes,
        }
    )
    chunk_bytes = _CHUNK_PAGES * page_bytes
    for start in range(0, size, chunk_bytes):
        heads = np.frombuffer(_read(fd, start, chunk_bytes), head)
        first = start // page_bytes
        is_seals = (heads["flags"] == OVERFLOW) & (heads["mark"] == SEAL_MAGIC)
        for at in np.flatnonzero(heads["number"] == np.arange(first, first + len(heads), dtype=np.uint64)).tolist():
            yield first + at, bool(is_seals[at])


def _read(fd: int, start: int, size: int) -> bytes:
    """`size` bytes; zeros for what lies on pages that can't be read and beyond the end."""
    try:
        return os.pread(fd, size, start).ljust(size, b"\0")
    except OSError:
        if size <= mmap.PAGESIZE:
            return bytes(size)
    ends = [*range(start, start + size, mmap.PAGESIZE), start + size]
    return b"".join(_read(fd, at, end - at) for at, end in pairwise(ends))


def _seals(block: bytes, shard: ShardFile) -> Iterator[Seal]:
    """Seals that stand end to end; after a damaged one, from the next mark on."""
    view = memoryview(block)
    at = 0
    while at >= 0:
        try:
            seal = decode_seal(view[at:], f"a seal in {shard.file}")
        except CorruptError:
            at = block.find(SEAL_MAGIC, at + 1)
            continue
        yield seal
        at += len(encode_seal(seal))


def _page_bytes(fd: int) -> int:
    """As either root says, or this machine's."""
    for root in (0, mmap.PAGESIZE):
        data = _read(fd, root, 64)
        (size,) = struct.unpack_from("<I", data, _META_PAGE_SIZE_AT)
        if struct.unpack_from("<I", data, _META_MAGIC_AT)[0] == _META_MAGIC and size.bit_count() == 1 and size >= 512:
            return int(size)
    return mmap.PAGESIZE
