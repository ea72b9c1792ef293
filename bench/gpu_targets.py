"""What an H200 on PCIe Gen5 should reach; measure both ceilings first, on the same machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """`met` from `good` on, `short` up to `limit`, `FAIL` beyond. `lower`: less is better. `share`: of the ceiling."""

    good: float
    limit: float
    lower: bool = False
    share: bool = False


_RING = Target(0.90, 0.80, share=True)
_HOST = Target(20.0, 60.0, lower=True)
TARGETS = {
    "copy to pinned memory, 1024 MiB": Target(53.0, 45.0),
    "gather, 8192 rows x 3 x 7168": Target(3400.0, 2600.0),
    "ring, 1024 rows x 3 x 7168": _RING,
    "ring, 8192 rows x 3 x 7168": _RING,
    "ring, 8192 rows x 4 x 7168": _RING,
    "host time of a step, 32 rows in 1 chunk": _HOST,
    "host time of a step, 32 rows in 32 chunks": _HOST,
    "host time of a bound call": Target(5.0, 10.0, lower=True),
    "time added to a prefill step": Target(1.0, 5.0, lower=True),
    "time added to a decode step": Target(2.0, 5.0, lower=True),
}


def verdict(what: str, value: float | None, share: float | None = None) -> str:
    """`met`, `short`, `FAIL`, or nothing where there is no target or no value."""
    target = TARGETS.get(what)
    seen = share if target and target.share else value
    if target is None or seen is None:
        return ""
    sign = -1 if target.lower else 1
    return "met" if sign * seen >= sign * target.good else "short" if sign * seen >= sign * target.limit else "FAIL"
