"""A data file of any container, recognised by its first bytes, as a stream of records."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import zstandard

from extractor.prepare.jsontext import Raw, read_text
from extractor.prepare.layout import sniff
from extractor.prepare.tables import read_arrow, read_parquet

_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
_ARROW = (b"ARROW1", b"\xff\xff\xff\xff")
_BUFFER_BYTES = 1 << 20
_STEP_BYTES = 1 << 13  # what is lost before damage inside a block; a file that was cut off gives all it has
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
            layout = sniff(_unpacked(self._raw, magic).text)
        with self._path.open("rb") as self._raw:
            content = _unpacked(self._raw, magic)
            yield from read_text(content.text, layout, self._max_bytes)
            content.raise_damage()


class _UntilDamage(io.RawIOBase):
    """What a compressed file gives before the place where it is damaged, and then an end. A buffered reader that met
    the damage as an exception would drop the megabyte that it was filling."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self.damage: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.damage is not None:
            return 0
        try:
            data = self._read(min(len(buffer), _STEP_BYTES))
        except _DAMAGE as error:
            self.damage = error
            return 0
        buffer[: len(data)] = data
        return len(data)


@dataclass(frozen=True, slots=True)
class _Content:
    text: IO[bytes]
    until_damage: _UntilDamage | None = None

    def raise_damage(self) -> None:
        if self.until_damage is not None and self.until_damage.damage is not None:
            raise self.until_damage.damage


def _unpacked(file: IO[bytes], magic: bytes) -> _Content:
    if magic.startswith(_GZIP):
        raw = _UntilDamage(gzip.GzipFile(fileobj=file).read1)
    elif magic.startswith(_ZSTD):
        raw = _UntilDamage(_reader(_unzstd(file)))
    else:
        return _Content(file)
    return _Content(cast(IO[bytes], io.BufferedReader(raw, _BUFFER_BYTES)), raw)


def _unzstd(file: IO[bytes]) -> Iterator[bytes]:
    """zstandard's own reader takes a file that was cut off for a whole one."""
    frame, rest = None, b""
    while packed := rest or file.read(_STEP_BYTES):
        frame = frame or zstandard.ZstdDecompressor().decompressobj()
        yield frame.decompress(packed)
        rest = frame.unused_data if frame.eof else b""
        frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("Compressed file ended in the middle of a frame")


def _reader(pieces: Iterator[bytes]) -> Callable[[int], bytes]:
    left = b""

    def read(size: int) -> bytes:
        nonlocal left
        if not left:
            left = next((piece for piece in pieces if piece), b"")
        data, left = left[:size], left[size:]
        return data

    return read
