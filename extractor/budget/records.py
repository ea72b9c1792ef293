"""The length of one parsed record: which fields hold it, and why a record has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from extractor.budget.lengths import Int64s
from extractor.budget.tally import Reject, check_range

# In order of preference: counts that a tokenizer wrote, then the ids themselves.
LENGTH_FIELDS = ("seq_len", "num_tokens")
ID_FIELDS = ("input_ids", "token_ids", "tokens")
EXPECTED = f"{' or '.join(LENGTH_FIELDS)} (a count), or {', '.join(ID_FIELDS)} (token ids)"


class NoLengthError(Exception):
    """A record without a usable length; the text is the reason."""


def record_length(record: Any) -> int:
    """Tokens of a parsed record: an object with a length or ids, or a bare list of ids. Raises NoLengthError."""
    if isinstance(record, list):
        return _id_count(record, "the record")
    if not isinstance(record, dict):
        raise NoLengthError(f"is {_kind(record)}, not an object")
    for name in (*LENGTH_FIELDS, *ID_FIELDS):
        value = record.get(name)
        if isinstance(value, list):
            return _id_count(value, name)
        if value is not None:
            return _count(value, name)
    raise NoLengthError(f"has neither {EXPECTED}")


def parse_lines(block: bytes, file: Path, first_record: int) -> tuple[Int64s, list[Reject]]:
    """Lengths of the good lines of `block` and a Reject for each other line; blank lines are neither.

    Raises InputError for a negative or absurd length.
    """
    lengths: list[int] = []
    rejects: list[Reject] = []
    for number, line in enumerate(block.split(b"\n"), first_record):
        if not line.strip():
            continue
        try:
            lengths.append(checked_length(_parse(line), file, number))
        except NoLengthError as reason:
            rejects.append(Reject(file, number, str(reason)))
    return np.array(lengths, np.int64), rejects


def checked_length(record: Any, file: Path, number: int) -> int:
    """The positive length of record `number` of `file`. Raises NoLengthError, or InputError when out of range."""
    length = record_length(record)
    check_range(length, file, number)
    if length == 0:
        raise NoLengthError("has no tokens")
    return length


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except UnicodeDecodeError as error:
        raise NoLengthError(f"is not UTF-8 (byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise NoLengthError(f"is not JSON ({error})") from None


def _id_count(ids: list[Any], name: str) -> int:
    if not all(isinstance(i, (int, str)) and not isinstance(i, bool) for i in ids):
        raise NoLengthError(f"{name} is not a flat list of token ids")
    return len(ids)


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise NoLengthError(f"{name} is {_kind(value)}, not an integer")
    return value


def _kind(value: Any) -> str:
    names = {
        str: "text",
        bool: "true or false",
        float: "a fraction",
        dict: "an object",
        type(None): "null",
        int: "a number",
    }
    return names.get(type(value), type(value).__name__)
