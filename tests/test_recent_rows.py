"""The table of recent rows against a plain dict, and what it keeps of samples that are long past."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extractor.recent_rows import Match, RecentRows

SIZE = 8


class Model:
    """Place -> (print, token, sample, position), in Python's own words."""

    def __init__(self) -> None:
        self.table: dict[int, tuple[int, int, str, int]] = {}

    def enter(self, sample: str, rows: list[tuple[int, int]]) -> Match | None:
        before = self._match(rows)
        for position, (print_, token) in enumerate(rows):
            self.table[print_ % SIZE] = (print_, token, sample, position)
        return before or self._match(rows)

    def _match(self, rows: list[tuple[int, int]]) -> Match | None:
        found = [
            (row, self.table[print_ % SIZE])
            for row, (print_, token) in enumerate(rows)
            if print_ % SIZE in self.table
            and self.table[print_ % SIZE][0] == print_
            and self.table[print_ % SIZE][1] != token
        ]
        return Match(found[0][0], len(found), *found[0][1][2:]) if found else None


def _enter(recent: RecentRows, sample: str, rows: list[tuple[int, int]]) -> Match | None:
    prints, tokens = np.array(rows, np.uint64).T
    return recent.enter(sample, np.arange(len(rows)), prints, tokens.astype(np.int32))


# Few prints and tokens, so that rows repeat and displace one another.
CHUNKS = st.lists(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=6), max_size=20)


@given(CHUNKS)
def test_it_reports_what_a_dict_would(chunks) -> None:
    recent, model = RecentRows(SIZE), Model()
    for number, rows in enumerate(chunks):
        assert _enter(recent, f"s{number}", rows) == model.enter(f"s{number}", rows)


class Id(str):
    """An id that tells when it is gone."""


@pytest.mark.parametrize("rows_each", [1, 3, SIZE])
def test_samples_are_forgotten_with_their_last_row(rows_each) -> None:
    recent, alive = RecentRows(SIZE), weakref.WeakSet()
    rng = np.random.default_rng(0)
    for number in range(500):
        sample = Id(f"s{number}")
        alive.add(sample)
        rows = [(int(print_), 0) for print_ in rng.integers(1, 1 << 60, rows_each)]
        assert _enter(recent, sample, rows) is None
        del sample
        assert len(alive) <= SIZE
    found = _enter(recent, "again", [(rows[-1][0], 1)])
    assert found == Match(0, 1, "s499", rows_each - 1)
