"""Sizes as people read them: in the unit that leaves something before the point. Powers of 1,024, and they say so. And
counts."""

from __future__ import annotations

KIB, MIB, GIB, TIB = (1 << 10 * power for power in (1, 2, 3, 4))


def size(size_bytes: float) -> str:
    """`5,543.5 GiB`; from 10,000 GiB on in TiB, below 0.1 GiB in MiB, and so on down to bytes. Jobs are compared in
    GiB, which is why that unit reaches further than the others."""
    if size_bytes >= 10_000 * GIB:
        return f"{size_bytes / TIB:,.1f} TiB"
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit / 10:
            return f"{size_bytes / unit:,.1f} {name}"
    return f"{size_bytes:,.0f} bytes"


def counted(number: int, noun: str) -> str:
    """`1 sample`, `2,000 samples`; the noun is in the singular and takes an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
