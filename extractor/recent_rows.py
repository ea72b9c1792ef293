"""The last rows of one layer, so that a row that comes a second time is noticed.

Why a row's own token decides, and not the tokens up to it: rows with a common prefix are equal by right, and rows whose
prefixes differ can be (a sliding window has forgotten the difference, or it rounds away). Rows of two different tokens
can't: each holds its token's embedding (unused tokens may share one, but do not occur in text). A stale buffer that
holds other text has another token in almost every row. For the same reason the earlier row may be anywhere, not only at
the same position of another sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Match:
    """Rows that have the bits of a row of another token."""

    row: int  # the first
    count: int
    other_sample: str
    other_position: int


class RecentRows:
    """Fingerprints in a table of `size` places (a power of two); a new row displaces the old one of its place, and with
    its last row a sample is forgotten: memory does not grow with the number of samples."""

    def __init__(self, size: int) -> None:
        self._prints = np.zeros(size, dtype=np.uint64)  # 0: empty
        self._tokens = np.zeros(size, dtype=np.int32)
        self._positions = np.zeros(size, dtype=np.int32)
        self._samples = np.zeros(size, dtype=object)  # the ids themselves: a reference each, not a copy

    def enter(
        self, sample_id: str, positions: NDArray[np.int64], prints: NDArray[np.uint64], tokens: NDArray[np.int32]
    ) -> Match | None:
        """Remember rows of one sample; say whether one equals an earlier row, or another of these, of another token.

        positions, prints, tokens  [n]: in the sample; from `probe.fingerprints`; the rows' own token ids
        """
        places = (prints & np.uint64(len(self._prints) - 1)).astype(np.intp)
        earlier = self._match(places, prints, tokens)
        self._prints[places] = prints
        self._tokens[places] = tokens
        self._positions[places] = positions
        self._samples[places] = sample_id
        return earlier or self._match(places, prints, tokens)

    def _match(self, places: NDArray[np.intp], prints: NDArray[np.uint64], tokens: NDArray[np.int32]) -> Match | None:
        found = np.flatnonzero((self._prints[places] == prints) & (self._tokens[places] != tokens))
        if not found.size:
            return None
        place = places[found[0]]
        return Match(int(found[0]), found.size, self._samples[place], int(self._positions[place]))
