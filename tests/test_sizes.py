"""No size but zero reads as zero."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extractor.sizes import GIB, KIB, MIB, TIB, counted, size


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"),
        (102, "102 bytes"),
        (103, "0.1 KiB"),
        (2048, "2.0 KiB"),
        (104_858, "0.1 MiB"),
        (100 * MIB, "100.0 MiB"),
        (103 * MIB, "0.1 GiB"),
        (3 * GIB // 2, "1.5 GiB"),
        (9_999 * GIB, "9,999.0 GiB"),
        (10_240 * GIB, "10.0 TiB"),
    ],
)
def test_each_unit(size_bytes, text):
    assert size(size_bytes) == text


@given(st.integers(1, 1 << 60))
def test_what_is_said_is_within_half_of_a_shown_digit(size_bytes):
    value, unit = re.fullmatch(r"([\d,.]+) (\w+)", size(size_bytes)).groups()
    value = float(value.replace(",", ""))
    assert value > 0
    factor = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}[unit]
    assert abs(value * factor - size_bytes) <= 0.0501 * factor


def test_one_is_singular():
    assert [counted(n, "sample") for n in (0, 1, 2, 2000)] == ["0 samples", "1 sample", "2 samples", "2,000 samples"]
