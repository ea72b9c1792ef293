"""Samples on disk between tokenizing and writing: buckets by shuffle key, each small enough to be sorted in memory.

The key is a hash of seed and token ids. Equal samples meet in one bucket, and the buckets, sorted and laid end to end,
are in the order of the keys: that order is the shuffle, whatever the number of buckets, workers or files.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from extractor.prepare.assemble import Assembled
from extractor.samples import SEGMENT_KINDS

_HEAD = struct.Struct("<16sIIQIIIIB")  # key, source, file, record, part, parts, tokens, segments, truncated
_SEGMENT = np.dtype([("kind", "u1"), ("start", "<i4"), ("end", "<i4")])
_KEY_BYTES = 16
BUCKET_BYTES = 64 << 20  # a bucket of the shortest samples takes some five times this in memory


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a sample comes from. `part` of `parts`: records may give several samples."""

    source: int
    file: int
    record: int
    part: int
    parts: int


@dataclass(frozen=True, slots=True)
class Spilled:
    """A sample as read back; arrays are views of the bucket's bytes."""

    key: bytes
    place: Place
    token_ids: np.ndarray
    loss_mask: np.ndarray
    segments: np.ndarray
    truncated: bool


def shuffle_key(token_ids: np.ndarray, seed: int) -> bytes:
    """16 bytes: equal for equal ids under one seed; in byte order they are a random order."""
    key = str(seed).encode()
    if len(key) > hashlib.blake2b.MAX_KEY_SIZE:
        key = hashlib.blake2b(key).digest()
    return hashlib.blake2b(token_ids.astype("<i4").tobytes(), digest_size=_KEY_BYTES, key=key).digest()


def bucket_of(key: bytes, buckets: int) -> int:
    """Buckets are equal ranges of keys, in order."""
    return int.from_bytes(key[:8], "big") * buckets >> 64


def pack(sample: Assembled, place: Place, key: bytes) -> bytes:
    segments = np.array([(SEGMENT_KINDS.index(kind), start, end) for kind, start, end in sample.segments], _SEGMENT)
    head = _HEAD.pack(
        key,
        place.source,
        place.file,
        place.record,
        place.part,
        place.parts,
        sample.token_ids.size,
        segments.size,
        sample.truncated,
    )
    return b"".join((head, sample.token_ids.astype("<i4").tobytes(), sample.loss_mask.tobytes(), segments.tobytes()))


def unpack(data: bytes) -> Iterator[Spilled]:
    at = 0
    while at < len(data):
        key, source, file, record, part, parts, tokens, segments, truncated = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield Spilled(
            key,
            Place(source, file, record, part, parts),
            np.frombuffer(data, "<i4", tokens, at),
            np.frombuffer(data, np.uint8, tokens, at + 4 * tokens),
            np.frombuffer(data, _SEGMENT, segments, at + 5 * tokens),
            bool(truncated),
        )
        at += 5 * tokens + segments * _SEGMENT.itemsize


class Buckets:
    """`count` files in `folder`, appended to while records are read, then read one at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        self.count = count
        self._paths = [folder / f"bucket-{i:04d}" for i in range(count)]
        self._files: list[BinaryIO] = [path.open("wb") for path in self._paths]

    def append(self, packed: dict[int, bytes]) -> None:
        for bucket, data in packed.items():
            self._files[bucket].write(data)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def sorted(self, bucket: int) -> list[Spilled]:
        """The bucket's samples in shuffle order; equal ones by source, file and record."""
        return sorted(unpack(self._paths[bucket].read_bytes()), key=lambda sample: (sample.key, sample.place))
