"""Lengths out of JSON Lines and JSON files, plain or compressed: blocks of whole lines, parsed in a few threads.

Each block goes to the fastest parser that accepts it: flat lines (Numba), columns (pyarrow), line by line (json). Only
the last one names bad records, so a file of ten million good lines and one bad one is still read at speed.
"""

from __future__ import annotations

import io
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from extractor.budget.lengths import Int64s
from extractor.budget.records import ID_FIELDS, LENGTH_FIELDS, NoLengthError, checked_length, parse_lines
from extractor.budget.tally import MAX_TOKENS, Reject, Tally
from extractor.errors import InputError

BLOCK_BYTES = 4 << 20
# Importing Numba and compiling take about 2 s once: not worth it below this size.
FLAT_FROM_BYTES = 64 << 20
_WORKERS = min(8, os.cpu_count() or 1)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Lengths = tuple[Int64s, int]  # lengths [n] int64, lines that they took
Parser = Callable[[bytes], Lengths | None]


def read_text(file: Path, source: str, tally: Tally) -> None:
    """Add the lengths of every record of `file` to `tally` under `source`.

    Raises InputError when the file can't be read or a length is negative or absurd.
    """
    try:
        with io.BufferedReader(pa.input_stream(str(file), compression="detect"), BLOCK_BYTES) as stream:
            head = _whole_lines(stream, BLOCK_BYTES)
            if _is_array(head):
                _read_array(head + stream.read(), file, source, tally)
            else:
                _read_lines(head, stream, file, source, tally)
    except OSError as error:
        raise InputError(f"{file} can't be read ({error}); restore the file, then plan again") from error


def _read_lines(head: bytes, stream: BinaryIO, file: Path, source: str, tally: Tally) -> None:
    parsers = _parsers(head, file.stat().st_size)
    line = 1
    for block, lengths in _in_threads(_blocks(head, stream), lambda block: _parse(block, parsers)):
        if lengths is None:
            values, rejects = parse_lines(block, file, line)
            tally.add(source, values)
            for reject in rejects:
                tally.reject(reject)
            line += block.count(b"\n")
        else:
            tally.add(source, lengths[0])
            line += lengths[1]


def _parsers(head: bytes, file_bytes: int) -> list[Parser]:
    """Which fast parsers suit the file, from its first good record among the first hundred."""
    field = next(filter(None, map(_length_field, head.split(b"\n", 100)[:100])), None)
    if field is None:
        return []
    name, is_list = field
    parsers: list[Parser] = [lambda block: _columns(block, name, is_list)]
    if not is_list and file_bytes >= FLAT_FROM_BYTES:
        parsers.insert(0, lambda block: _flat(block, name))
    return parsers


def _length_field(line: bytes) -> tuple[str, bool] | None:
    """(field that holds the record's length, whether it is a list of ids)"""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(record, dict):
        for name in (*LENGTH_FIELDS, *ID_FIELDS):
            if record.get(name) is not None:
                return name, isinstance(record[name], list)
    return None


def _parse(block: bytes, parsers: list[Parser]) -> Lengths | None:
    for parser in parsers:
        lengths = parser(block)
        if lengths is not None and _in_range(lengths[0]):
            return lengths
    return None


def _in_range(lengths: Int64s) -> bool:
    return bool(lengths.size) and int(lengths.min()) >= 1 and int(lengths.max()) <= MAX_TOKENS


def _flat(block: bytes, name: str) -> Lengths | None:
    from extractor.budget.flat_lines import flat_lengths

    lengths = flat_lengths(block, name)
    return None if lengths is None else (lengths, lengths.size)


def _columns(block: bytes, name: str, is_list: bool) -> Lengths | None:
    """None unless every line is one object with a value under `name`: then line and row numbers agree."""
    if not _is_utf8(block):  # pyarrow does not look inside the fields that it skips
        return None
    kind = pa.list_(pa.int64()) if is_list else pa.int64()
    schema = pj.ParseOptions(explicit_schema=pa.schema([(name, kind)]), unexpected_field_behavior="ignore")
    read = pj.ReadOptions(use_threads=False, block_size=min(len(block) + 1, 2**31 - 1))
    try:
        column = pj.read_json(pa.BufferReader(block), read, schema).column(name)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if column.null_count or len(column) != block.count(b"\n"):
        return None
    lengths = pc.list_value_length(column) if is_list else column
    return lengths.to_numpy().astype(np.int64), len(column)


def _is_utf8(block: bytes) -> bool:
    try:
        return block.isascii() or bool(block.decode())
    except UnicodeDecodeError:
        return False


def _blocks(head: bytes, stream: BinaryIO) -> Iterator[bytes]:
    block = head.removeprefix(_BYTE_ORDER_MARK)
    while block:
        yield block
        block = _whole_lines(stream, BLOCK_BYTES)


def _whole_lines(stream: BinaryIO, size: int) -> bytes:
    """The next `size` bytes or so, up to the end of a line; b"" at the end. The last line gets its newline."""
    block = stream.read(size)
    if block and not block.endswith(b"\n"):
        block += stream.readline()
    return block if not block or block.endswith(b"\n") else block + b"\n"


def _in_threads(
    blocks: Iterator[bytes], parse: Callable[[bytes], Lengths | None]
) -> Iterator[tuple[bytes, Lengths | None]]:
    """(block, parse(block)) in order, with a bounded number of blocks in memory."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        ahead: deque[tuple[bytes, Future[Lengths | None]]] = deque()
        for block in blocks:
            ahead.append((block, pool.submit(parse, block)))
            if len(ahead) > 2 * _WORKERS:
                done, future = ahead.popleft()
                yield done, future.result()
        for done, future in ahead:
            yield done, future.result()


def _is_array(head: bytes) -> bool:
    """A JSON document that is an array of records, rather than lines that may each be an array of ids."""
    start = head.removeprefix(_BYTE_ORDER_MARK).lstrip()[:4096]
    return start.startswith(b"[") and start[1:].lstrip()[:1] in (b"{", b"[", b"]", b"")


def _read_array(data: bytes, file: Path, source: str, tally: Tally) -> None:
    try:
        records = json.loads(data.removeprefix(_BYTE_ORDER_MARK))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not a JSON array of records ({error}); restore the file") from error
    lengths: list[int] = []
    for number, record in enumerate(records, 1):
        try:
            lengths.append(checked_length(record, file, number))
        except NoLengthError as reason:
            tally.reject(Reject(file, number, str(reason)))
    tally.add(source, np.array(lengths, np.int64))
