"""Whether a job fits its disk, and what removing old stores would change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FITS = "fits"
FITS_AFTER_REMOVING = "fits after removing"
DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`remove`: the stores whose removal makes room, where that is needed. `short_bytes`: what is missing after
    everything removable is gone."""

    verdict: str
    need_bytes: int
    free_bytes: int
    remove: tuple[str, ...] = ()
    short_bytes: int = 0


def judge(need_bytes: int, free_bytes: int, removable: Sequence[tuple[str, int]]) -> Verdict:
    """`removable`: (store, bytes that its removal frees). The fewest stores are proposed, the smallest that suffice."""
    short = need_bytes - free_bytes
    if short <= 0:
        return Verdict(verdict=FITS, need_bytes=need_bytes, free_bytes=free_bytes)
    short_at_best = short - sum(size for _, size in removable)
    if short_at_best > 0:
        return Verdict(verdict=DOES_NOT_FIT, need_bytes=need_bytes, free_bytes=free_bytes, short_bytes=short_at_best)
    return Verdict(
        verdict=FITS_AFTER_REMOVING, need_bytes=need_bytes, free_bytes=free_bytes, remove=_fewest(short, removable)
    )


def _fewest(short: int, removable: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Largest first while one alone does not suffice, then the smallest that does: never more stores than needed."""
    rest = sorted(removable, key=lambda store: store[1])
    chosen: list[str] = []
    while short > 0:
        enough = next((store for store in rest if store[1] >= short), rest[-1])
        rest.remove(enough)
        chosen.append(enough[0])
        short -= enough[1]
    return tuple(chosen)
