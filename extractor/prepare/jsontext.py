"""Records of JSONL and JSON text, streamed: no more than one record and one buffer are in memory."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from extractor.prepare.reject import Reject

_BLANK = " \t\r\n"
_HEAD_BYTES = 1 << 20
_BOM = codecs.BOM_UTF8
_DECODER = json.JSONDecoder(strict=False)  # raw line breaks and tabs inside strings can be read in one way only


@dataclass(slots=True)
class Raw:
    """One record as found: `value` is its bytes, still to be parsed, or the parsed object. `number` is the line in
    JSONL, else the position in the file, from 0. `offset` counts bytes, decompressed; None where there are none.
    `size` is about how many bytes it takes. With a `problem` (reason, detail) there is no value."""

    number: int
    offset: int | None
    value: Any
    size: int
    problem: tuple[str, str] | None = None


def parse(raw: Raw) -> Any:
    """The record's value. Raises Reject."""
    if raw.problem is not None:
        raise Reject(*raw.problem)
    if not isinstance(raw.value, bytes):
        return raw.value
    try:
        return _DECODER.decode(raw.value.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Reject("invalid_utf8", f"byte {raw.value[error.start]:#04x} at position {error.start}") from None
    except RecursionError:
        raise Reject("broken_json", "nested too deeply") from None
    except ValueError as error:
        raise Reject("broken_json", str(error)) from None


def read_text(stream: IO[bytes], layout: str, max_bytes: int) -> Iterator[Raw]:
    """Records of a text stream, laid out as `sniff` says."""
    return _lines(stream, max_bytes) if layout == "lines" else _values(stream, layout == "array", max_bytes)


def _lines(stream: IO[bytes], max_bytes: int) -> Iterator[Raw]:
    """Lines end at LF alone: Unicode's own line separators may stand inside JSON strings."""
    offset = 0
    number = -1
    while line := stream.readline(max_bytes + 1):
        number += 1
        start, size = offset, len(line)
        if size > max_bytes:
            size += _skip_line(stream, line)
            problem = ("record_too_large", f"a line of {size} bytes; at most {max_bytes} are read (--max-record-bytes)")
            yield Raw(number, start, None, max_bytes, problem)
        else:
            text = line.removeprefix(_BOM) if number == 0 else line
            if text.strip():
                yield Raw(number, start + len(line) - len(text), text.strip(), size)
        offset += size


def _skip_line(stream: IO[bytes], line: bytes) -> int:
    """Read to the end of the line without keeping it; the number of bytes read."""
    skipped = 0
    while line and not line.endswith(b"\n"):
        line = stream.readline(_HEAD_BYTES)
        skipped += len(line)
    return skipped


def _values(stream: IO[bytes], in_array: bool, max_bytes: int) -> Iterator[Raw]:
    """Values one after another, or the elements of one array. After a syntax error nothing can be told apart, so the
    rest of the file counts as one record."""
    window = _Window(stream, max_bytes)
    if in_array:
        window.open_array()
    number = 0
    while window.more("]," if in_array else ""):
        offset = window.offset
        try:
            value, size = window.value()
        except Reject as reject:
            yield Raw(number, offset, None, 0, (reject.reason, reject.detail))
            if reject.reason != "invalid_utf8":
                return
        else:
            yield Raw(number, offset, value, size)
        number += 1


class _Window:
    """A sliding window of decoded text. Bytes that are not UTF-8 become lone surrogates, to harm one record only."""

    def __init__(self, stream: IO[bytes], max_bytes: int) -> None:
        self._stream = stream
        self._max = max_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._text = ""
        self._at = 0
        self._done = False
        self.offset = 0
        self._fill(_HEAD_BYTES)
        self.skip("\ufeff")

    def _fill(self, size: int) -> None:
        data = self._stream.read(size)
        self._done = not data
        self._text = self._text[self._at :] + self._decode.decode(data, self._done)
        self._at = 0

    def _advance(self, end: int) -> str:
        taken = self._text[self._at : end]
        self.offset += len(taken.encode("utf-8", "surrogateescape"))
        self._at = end
        return taken

    def skip(self, characters: str) -> None:
        """Pass over blanks and `characters`."""
        passed = _BLANK + characters
        while True:
            end = self._at
            while end < len(self._text) and self._text[end] in passed:
                end += 1
            self._advance(end)
            if end < len(self._text) or self._done:
                return
            self._fill(_HEAD_BYTES)

    def open_array(self) -> None:
        self.skip("")
        self._advance(self._at + 1)

    def more(self, separators: str) -> bool:
        self.skip(separators)
        return self._at < len(self._text)

    def value(self) -> tuple[Any, int]:
        """The next value and its size in characters. Raises Reject."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                if end < len(self._text) or self._done:
                    return self._checked(value, end)
            except RecursionError:
                raise Reject("broken_json", "nested too deeply") from None
            except ValueError as error:
                if self._done:
                    raise Reject("unreadable", f"broken JSON, nothing after it is read: {error}") from None
            held = len(self._text) - self._at
            if held > self._max:
                raise Reject("unreadable", f"a value over {self._max} bytes or broken JSON; nothing after it is read")
            self._fill(max(_HEAD_BYTES, held))

    def _checked(self, value: Any, end: int) -> tuple[Any, int]:
        taken = self._advance(end)
        try:
            taken.encode()
        except UnicodeEncodeError as error:
            raise Reject("invalid_utf8", f"byte {ord(taken[error.start]) & 0xFF:#04x}") from None
        return value, len(taken)
