"""The bytes of a store's small records: seals, index blocks, range statistics. Functions of arrays and bytes only.

All fields are little-endian and of fixed width; a record ends with the xxh3 of what stands before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from extractor.errors import CorruptError

FORMAT_VERSION = 1

STATS = np.dtype([("saturated", "<u8"), ("inf", "<u8"), ("nan", "<u8"), ("max_abs", "<f4")])
TILE = np.dtype(
    [
        ("key", "<u8"),
        ("offset", "<u8"),  # of the first stored byte in the shard's data file
        ("stored_bytes", "<u8"),
        ("checksum", "<u8"),  # xxh3 of the stored bytes
        ("position", "<u4"),  # of the first row in the sample
        ("rows", "<u4"),
    ]
)
ENTRY = np.dtype(
    [
        ("hash", "<u8"),  # xxh3 of the sample id
        ("seal_offset", "<u8"),
        ("stored_bytes", "<u8"),  # of all tiles
        ("num_tokens", "<u4"),
        ("seal_bytes", "<u4"),
        ("id_bytes", "<u4"),
        ("pages", "<u4"),  # of all tiles
    ]
)
_SEAL_HEADER = np.dtype(
    [
        ("magic", "S4"),
        ("version", "<u4"),
        ("num_tokens", "<u4"),
        ("num_tiles", "<u4"),
        ("num_layers", "<u4"),
        ("row_bytes", "<u4"),
        ("id_bytes", "<u4"),
        ("reserved", "<u4"),
    ]
)
_INDEX_HEADER = np.dtype([("magic", "S4"), ("version", "<u4"), ("count", "<u4"), ("id_bytes", "<u4")])
SEAL_MAGIC = b"SEAL"
_INDEX_MAGIC = b"INDX"
_CHECKSUM_BYTES = 8
PAGE_HEADER_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seal:
    """What makes a sample exist. token_ids int32 [T]; loss_mask uint8 [T]; stats STATS [L]; tiles TILE [n]."""

    sample_id: str
    row_bytes: int
    token_ids: np.ndarray
    loss_mask: np.ndarray
    stats: np.ndarray
    tiles: np.ndarray

    @property
    def stored_bytes(self) -> int:
        return int(self.tiles["stored_bytes"].sum())


def checksum(data: bytes | memoryview | np.ndarray) -> int:
    """xxh3 (64 bits) of contiguous bytes."""
    return xxhash.xxh3_64_intdigest(data.data if isinstance(data, np.ndarray) else data)


def running_checksum() -> xxhash.xxh3_64:
    """The same for bytes that come in pieces: `update` with each, then `intdigest`."""
    return xxhash.xxh3_64()


def stats_from_counts(counts: np.ndarray) -> np.ndarray:
    """counts int64 [L, 4] (saturated, inf, nan, max |x| as fp32 bits) -> STATS [L]."""
    counts = np.asarray(counts, np.int64)
    stats = np.empty(len(counts), STATS)
    for column, name in enumerate(("saturated", "inf", "nan")):
        stats[name] = counts[:, column]
    stats["max_abs"] = counts[:, 3].astype(np.uint32).view(np.float32)
    return stats


def encode_seal(seal: Seal) -> bytes:
    """Seal -> header, tiles, stats, token ids, loss mask, id, checksum."""
    name = seal.sample_id.encode()
    header = np.zeros((), _SEAL_HEADER)
    header["magic"], header["version"] = SEAL_MAGIC, FORMAT_VERSION
    header["num_tokens"], header["num_tiles"] = len(seal.token_ids), len(seal.tiles)
    header["num_layers"], header["row_bytes"], header["id_bytes"] = len(seal.stats), seal.row_bytes, len(name)
    parts = (header, seal.tiles, seal.stats, seal.token_ids.astype("<i4"), seal.loss_mask.astype("u1"))
    return _closed(b"".join(part.tobytes() for part in parts) + name)


def decode_seal(data: bytes | memoryview, where: str) -> Seal:
    """Inverse of encode_seal; bytes after the record (padding) are ignored. `where` names the place in errors.

    Raises CorruptError for a wrong magic, version, length or checksum.
    """
    header = _header(data, _SEAL_HEADER, SEAL_MAGIC, where)
    tokens, tiles, layers = int(header["num_tokens"]), int(header["num_tiles"]), int(header["num_layers"])
    fields = (("tiles", TILE, tiles), ("stats", STATS, layers), ("tokens", "<i4", tokens), ("mask", "u1", tokens))
    fields_ = (*fields, ("id", "u1", int(header["id_bytes"])))
    arrays = _sections(data, _SEAL_HEADER.itemsize, fields_, where)
    return Seal(
        sample_id=arrays["id"].tobytes().decode(),
        row_bytes=int(header["row_bytes"]),
        token_ids=arrays["tokens"].copy(),
        loss_mask=arrays["mask"].copy(),
        stats=arrays["stats"].copy(),
        tiles=arrays["tiles"].copy(),
    )


def pages_of(value_bytes: np.ndarray | int, page_bytes: int) -> np.ndarray | int:
    """Pages that a value takes in the data file: it has pages of its own, headed by PAGE_HEADER_BYTES."""
    return -(-(value_bytes + PAGE_HEADER_BYTES) // page_bytes)


def index_entry(seal: Seal, seal_offset: int, seal_bytes: int, page_bytes: int) -> np.ndarray:
    """The ENTRY [] that lists `seal`."""
    name = seal.sample_id.encode()
    entry = np.empty((), ENTRY)
    entry["hash"], entry["id_bytes"] = checksum(name), len(name)
    entry["seal_offset"], entry["seal_bytes"] = seal_offset, seal_bytes
    entry["stored_bytes"] = seal.stored_bytes
    entry["pages"] = np.sum(pages_of(seal.tiles["stored_bytes"].astype(np.int64), page_bytes))
    entry["num_tokens"] = len(seal.token_ids)
    return entry


def encode_index(entries: np.ndarray, ids: bytes) -> bytes:
    """ENTRY [N] and the N sample ids' UTF-8 bytes end to end -> one index block."""
    header = np.zeros((), _INDEX_HEADER)
    header["magic"], header["version"] = _INDEX_MAGIC, FORMAT_VERSION
    header["count"], header["id_bytes"] = len(entries), len(ids)
    return _closed(header.tobytes() + entries.tobytes() + ids)


def decode_index(data: bytes | memoryview, where: str) -> tuple[np.ndarray, bytes]:
    """Index block -> (ENTRY [N], the ids' UTF-8 bytes end to end). Raises CorruptError as decode_seal does."""
    header = _header(data, _INDEX_HEADER, _INDEX_MAGIC, where)
    fields = (("entries", ENTRY, int(header["count"])), ("ids", "u1", int(header["id_bytes"])))
    arrays = _sections(data, _INDEX_HEADER.itemsize, fields, where)
    if int(arrays["entries"]["id_bytes"].sum()) != arrays["ids"].size:
        raise CorruptError(f"the index block in {where} holds ids of other lengths than it lists")
    return arrays["entries"], arrays["ids"].tobytes()


def _closed(body: bytes) -> bytes:
    return body + checksum(body).to_bytes(_CHECKSUM_BYTES, "little")


def _header(data: bytes | memoryview, dtype: np.dtype, magic: bytes, where: str) -> np.ndarray:
    if len(data) < dtype.itemsize:
        raise CorruptError(f"{where} ends after {len(data)} bytes of a record")
    header: np.ndarray = np.frombuffer(data, dtype, count=1)[0]
    if header["magic"] != magic:
        raise CorruptError(
            f"{where} starts with {bytes(data[:4])!r} where {magic!r} is expected; the bytes are damaged"
        )
    if header["version"] != FORMAT_VERSION:
        raise CorruptError(
            f"{where} has record version {int(header['version'])}; this release reads {FORMAT_VERSION}",
            "update the extractor",
        )
    return header


def _sections(
    data: bytes | memoryview, start: int, fields: Sequence[tuple[str, object, int]], where: str
) -> dict[str, np.ndarray]:
    """Views of the named arrays that stand end to end from `start`, after checking the checksum behind them."""
    end = start + sum(np.dtype(dtype).itemsize * count for _, dtype, count in fields)  # type: ignore[call-overload]
    if len(data) < end + _CHECKSUM_BYTES:
        raise CorruptError(f"{where} holds {len(data)} bytes of a record of {end + 8}")
    if checksum(data[:end]) != int.from_bytes(data[end : end + _CHECKSUM_BYTES], "little"):
        raise CorruptError(f"{where} does not match its checksum; the bytes are damaged")
    arrays = {}
    for name, dtype, count in fields:
        array = np.frombuffer(data, dtype, count, start)  # type: ignore[call-overload]
        arrays[name] = array
        start += array.nbytes
    return arrays
