"""Numbers as people write and read them: 23.1M tokens in, hours out."""

from __future__ import annotations

import re
from decimal import Decimal

_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_NUMBER = re.compile(r"\s*(\d[\d_,]*(?:\.\d+)?|\.\d+)\s*([KMBGT]?)\s*", re.IGNORECASE)


def parse_quantity(text: str) -> Decimal | None:
    """`23.1M`, `23_100_000` or `338` as an exact number; None when it is none (a sign or a unit, for example)."""
    match = _NUMBER.fullmatch(text)
    if not match:
        return None
    return Decimal(match[1].replace("_", "").replace(",", "")) * _SUFFIXES[match[2].upper()]


def hours(value: float | None) -> str:
    """`113.8 h`; below a tenth of an hour in minutes; `-` when no rate is known."""
    if value is None:
        return "-"
    return f"{value * 60:,.1f} min" if 0 < value < 0.1 else f"{value:,.1f} h"
