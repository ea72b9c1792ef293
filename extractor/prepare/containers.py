"""A data file of any container, recognised by its first bytes, as a stream of records."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import pyarrow as pa
import zstandard

from extractor.prepare.jsontext import Raw, read_text
from extractor.prepare.layout import sniff
from extractor.prepare.tables import read_arrow, read_parquet

_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
_ARROW = (b"ARROW1", b"\xff\xff\xff\xff")
_BUFFER_BYTES = 1 << 20
_DAMAGE = (OSError, EOFError, zlib.error, zstandard.ZstdError, pa.ArrowException)


class RecordFile:
    """Streams the records of one file. A damaged file ends with a record that says so; it never raises for that."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._raw: IO[bytes] | None = None
        self.size_bytes = path.stat().st_size

    @property
    def position_bytes(self) -> int:
        """How far the file itself has been read; for tables, which are mapped, 0 until the end."""
        return self._raw.tell() if self._raw is not None and not self._raw.closed else 0

    def __iter__(self) -> Iterator[Raw]:
        number = 0
        try:
            for raw in self._records():
                number = raw.number + 1
                yield raw
        except _DAMAGE as error:
            yield Raw(number, None, None, 0, ("unreadable", f"{type(error).__name__}: {error}"))

    def _records(self) -> Iterator[Raw]:
        with self._path.open("rb") as file:
            magic = file.read(6)
        if magic.startswith(_PARQUET):
            return read_parquet(self._path)
        if magic.startswith(_ARROW):
            return read_arrow(self._path)
        return self._text_records(magic)

    def _text_records(self, magic: bytes) -> Iterator[Raw]:
        with self._path.open("rb") as self._raw:
            layout = sniff(_unpacked(self._raw, magic))
        with self._path.open("rb") as self._raw:
            yield from read_text(_unpacked(self._raw, magic), layout, self._max_bytes)


def _unpacked(file: IO[bytes], magic: bytes) -> IO[bytes]:
    if magic.startswith(_GZIP):
        return cast(IO[bytes], io.BufferedReader(gzip.GzipFile(fileobj=file), _BUFFER_BYTES))
    if magic.startswith(_ZSTD):
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return io.BufferedReader(cast(io.RawIOBase, reader), _BUFFER_BYTES)
    return file
