"""Lengths out of flat JSON lines such as `{"id": "A1-7", "seq_len": 16256}`, at memory speed.

A strict subset of JSON is accepted (one flat object a line; ASCII strings without escapes; unsigned integers), and
anything else is left to a real parser. pyarrow's JSON reader takes 3 times as long on such lines (bench/plan.py).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from extractor.budget.lengths import Int64s
from extractor.jit import numba

_NEWLINE, _SPACE, _TAB, _RETURN = 10, 32, 9, 13
_QUOTE, _BACKSLASH, _COMMA, _COLON, _OPEN, _CLOSE = 34, 92, 44, 58, 123, 125
_ZERO, _NINE = 48, 57
_MOST_DIGITS = 18  # of an int64


def flat_lengths(block: bytes | memoryview, key: str) -> Int64s | None:
    """The integer under `key` of each line of `block` (which ends with a newline), [lines] int64; None when any line
    is outside the subset, so that a full parser must decide."""
    data = np.frombuffer(block, np.uint8)
    out = np.empty(data.size // (len(key) + 6) + 1, np.int64)  # {"key":0 and newline is the shortest line
    lines = _scan(data, np.frombuffer(key.encode(), np.uint8), out)
    return None if lines < 0 else out[:lines]


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _scan(data: npt.NDArray[np.uint8], key: npt.NDArray[np.uint8], out: Int64s) -> int:
    at, lines = 0, 0
    while at < data.size:
        at, value = _line(data, at, key)
        if at < 0:
            return -1
        out[lines] = value
        lines += 1
    return lines


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _line(data: npt.NDArray[np.uint8], at: int, key: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """(start of the next line, value under key), or (-1, _) when the line is outside the subset."""
    found, value = 0, -1
    separator = _OPEN
    while separator != _CLOSE:
        if data[at] != separator:
            return -1, 0
        name = _spaces(data, at + 1)
        at = _string(data, name)
        if at < 0:
            return -1, 0
        is_key = _equal(data, name + 1, at - 1, key)
        at = _spaces(data, at)
        if data[at] != _COLON:
            return -1, 0
        at = _spaces(data, at + 1)
        at, number = _value(data, at)
        if at < 0 or (is_key and number < 0):
            return -1, 0
        if is_key:
            found, value = found + 1, number
        at = _spaces(data, at)
        separator = _CLOSE if data[at] == _CLOSE else _COMMA
    at = _spaces(data, at + 1)
    if found != 1 or data[at] != _NEWLINE:
        return -1, 0
    return at + 1, value


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _value(data: npt.NDArray[np.uint8], at: int) -> tuple[int, int]:
    """(end, integer) of an unsigned integer, (end, -1) of a string, (-1, -1) of anything else."""
    if data[at] == _QUOTE:
        return _string(data, at), -1
    start, number = at, 0
    while _ZERO <= data[at] <= _NINE:
        number = number * 10 + (np.int64(data[at]) - _ZERO)  # type: ignore[assignment]
        at += 1
    digits = at - start
    if digits == 0 or digits > _MOST_DIGITS or (digits > 1 and data[start] == _ZERO):
        return -1, -1
    return at, number


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _string(data: npt.NDArray[np.uint8], at: int) -> int:
    """The end of the plain string that starts at `at`, or -1. A newline ends every block, so this can't run off it."""
    if data[at] != _QUOTE:
        return -1
    at += 1
    while data[at] != _QUOTE:
        if data[at] < _SPACE or data[at] > 126 or data[at] == _BACKSLASH:
            return -1
        at += 1
    return at + 1


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _spaces(data: npt.NDArray[np.uint8], at: int) -> int:
    while data[at] == _SPACE or data[at] == _TAB or data[at] == _RETURN:
        at += 1
    return at


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _equal(data: npt.NDArray[np.uint8], start: int, stop: int, key: npt.NDArray[np.uint8]) -> bool:
    if stop - start != key.size:
        return False
    for i in range(key.size):  # noqa: SIM110 - compiled
        if data[start + i] != key[i]:
            return False
    return True
