"""Finding a shard's samples without LMDB, from the values themselves: for shards whose tree or root is damaged.

Every value has pages of its own and starts with a page header; a seal says where its tiles are and what they sum to.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator

from extractor.errors import CorruptError
from extractor.record import SEAL_MAGIC, Seal, decode_seal, encode_seal
from extractor.store.shard_file import ShardFile
from extractor.store.tree import OVERFLOW, PAGE_HEADER

_META_PAGE_SIZE_AT = 40
_META_MAGIC_AT = 16
_META_MAGIC = 0xBEEFC0DE
_FINGERPRINT = re.compile(rb'"fingerprint": "(\w+)"')
_ABOUT_WITHIN_BYTES = 1 << 18
_HEAD_BYTES = PAGE_HEADER.size + len(SEAL_MAGIC)


def find_seals(shard: ShardFile) -> Iterator[Seal]:
    """Seals that match their checksum, in file order; whether their tiles do is for the caller to see. Leftovers of a
    killed run may be among them: they were whole when written, or their tiles' checksums tell."""
    fd = os.open(shard.file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size, page_bytes = os.fstat(fd).st_size, _page_bytes(fd)
        shard.page_bytes = page_bytes
        page = 2
        while page * page_bytes < size:
            head = os.pread(fd, _HEAD_BYTES, page * page_bytes)
            number, _, flags, pages = PAGE_HEADER.unpack(head[: PAGE_HEADER.size].ljust(PAGE_HEADER.size, b"\0"))
            is_value = number == page and flags == OVERFLOW and 0 < pages <= size // page_bytes
            if is_value and head[PAGE_HEADER.size :] == SEAL_MAGIC:
                start, value_bytes = page * page_bytes + PAGE_HEADER.size, pages * page_bytes - PAGE_HEADER.size
                yield from _seals(os.pread(fd, value_bytes, start), shard)
            page += pages if is_value else 1
    finally:
        os.close(fd)


def fingerprint_in(shard: ShardFile) -> str | None:
    """Of the store that the shard was written for, as its description says, wherever that stands; None where no
    description can be found. It is written once, with the new shard, so it stands near the beginning."""
    with shard.file.open("rb") as handle:
        found = _FINGERPRINT.search(handle.read(_ABOUT_WITHIN_BYTES))
    return found[1].decode() if found else None


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
        data = os.pread(fd, 64, root).ljust(64, b"\0")
        (size,) = struct.unpack_from("<I", data, _META_PAGE_SIZE_AT)
        if struct.unpack_from("<I", data, _META_MAGIC_AT)[0] == _META_MAGIC and size.bit_count() == 1 and size >= 512:
            return int(size)
    return mmap.PAGESIZE
