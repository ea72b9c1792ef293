"""Which samples of each source are taken: a draw by hash, so that it depends on the seed and the sample alone."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field

import numpy as np

from extractor.prepare.recipe import Entry


def lot(key: bytes) -> int:
    """A sample's lot, 64 bits. Hashed once more: the order of keys is the order in the file, and taking the smallest
    keys would put a source's samples first."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, person=b"lot").digest(), "big")


@dataclass(slots=True)
class Lots:
    """The lots and lengths (in tokens) of one source's samples."""

    lots: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("i"))

    def add(self, key: bytes, length: int) -> None:
        self.lots.append(lot(key))
        self.lengths.append(length)


def limits(entries: list[Entry], lots: list[Lots]) -> list[int]:
    """For each source the first lot that is not taken."""
    share = _weight_unit(entries, lots)
    return [_limit(entry, drawn, share) for entry, drawn in zip(entries, lots, strict=True)]


def _weight_unit(entries: list[Entry], lots: list[Lots]) -> float:
    """Samples for a weight of 1: as many as the scarcest of the weighed sources allows."""
    ratios = [len(drawn.lots) / entry.weight for entry, drawn in zip(entries, lots, strict=True) if entry.weight]
    return min(ratios, default=0.0)


def _limit(entry: Entry, drawn: Lots, share: float) -> int:
    order = np.argsort(np.array(drawn.lots, np.uint64), kind="stable")
    count = min(_count(entry, len(drawn.lots), share), len(drawn.lots))
    if entry.max_tokens is not None:
        totals = np.cumsum(np.array(drawn.lengths, np.int64)[order])
        count = min(count, int(np.searchsorted(totals, entry.max_tokens, side="right")))
    return drawn.lots[int(order[count])] if count < len(drawn.lots) else 1 << 64


def _count(entry: Entry, available: int, share: float) -> int:
    if entry.take is not None:
        return entry.take
    if entry.fraction is not None:
        return round(entry.fraction * available)
    # The unit is a quotient; without the small addition 3 * (7 / 3) could come out below 7.
    return int(entry.weight * share + 1e-9) if entry.weight is not None else available
