"""A multiset of lengths against plain Python over the lengths themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extractor.budget.lengths import LengthCounts, merged
from extractor.budget.rows import histogram
from extractor.errors import UsageError

LENGTHS = st.lists(st.integers(1, 5000), min_size=1, max_size=200)


def expanded(counts: LengthCounts) -> list[int]:
    return np.repeat(counts.lengths, counts.counts).tolist()


@given(LENGTHS)
def test_totals(lengths):
    counts = LengthCounts.of(lengths)
    assert (counts.samples, counts.tokens, counts.longest) == (len(lengths), sum(lengths), max(lengths))
    assert counts.mean == sum(lengths) / len(lengths)


@given(LENGTHS, st.integers(1, 6000))
def test_a_cap_cuts_every_sample(lengths, cap):
    counts = LengthCounts.of(lengths)
    assert expanded(counts.capped(cap)) == sorted(min(n, cap) for n in lengths)
    assert counts.longer_than(cap) == sum(n > cap for n in lengths)


@given(LENGTHS, st.sampled_from([0.1, 1, 50, 90, 99, 100]))
def test_percentiles_are_nearest_rank(lengths, percent):
    rank = max(1, math.ceil(len(lengths) * percent / 100))
    assert LengthCounts.of(lengths).percentile(percent) == sorted(lengths)[rank - 1]


@given(LENGTHS, st.data())
def test_a_draw_is_a_sub_multiset_of_that_size(lengths, data):
    count = data.draw(st.integers(1, len(lengths)))
    drawn = expanded(LengthCounts.of(lengths).draw(count, 3, "A1"))
    rest = list(lengths)
    for value in drawn:
        rest.remove(value)  # raises when the draw holds a value too often
    assert len(drawn) == count


def test_a_draw_of_all_is_the_whole():
    counts = LengthCounts.of([1, 2, 2, 9])
    assert expanded(counts.draw(4, 0, "x")) == [1, 2, 2, 9]


def test_draws_differ_by_seed_and_by_source():
    counts = LengthCounts.of(range(1, 1000))
    draws = {tuple(expanded(counts.draw(20, seed, name))) for seed in (0, 1) for name in ("A", "B")}
    assert len(draws) == 4


def test_draws_are_uniform():
    """Mean of many draws: within five standard errors of the source's mean; a draw of the first rows is far off."""
    counts = LengthCounts.of(range(1, 1001))
    means = [counts.draw(50, seed, "A").mean for seed in range(200)]
    error = np.std(range(1, 1001)) / math.sqrt(50 * 200)
    assert abs(np.mean(means) - 500.5) < 5 * error
    assert abs(25.5 - 500.5) > 5 * error


def test_more_than_there_are_is_refused():
    with pytest.raises(UsageError, match="--take A1=3 asks for more than the 2 samples"):
        LengthCounts.of([1, 2]).draw(3, 0, "A1")


@given(st.lists(LENGTHS, min_size=1, max_size=4))
def test_merging_counts_every_part(parts):
    together = merged([LengthCounts.of(part) for part in parts])
    assert expanded(together) == sorted(n for part in parts for n in part)


@given(LENGTHS)
def test_histogram_bins_hold_each_sample_once(lengths):
    for row in histogram(LengthCounts.of(lengths)):
        inside = [n for n in lengths if row.from_tokens <= n < row.below_tokens]
        assert (row.samples, row.tokens) == (len(inside), sum(inside))
    assert sum(row.samples for row in histogram(LengthCounts.of(lengths))) == len(lengths)


def test_nothing_has_zeros():
    nothing = LengthCounts.of(np.array([], np.int64))
    assert (nothing.samples, nothing.tokens, nothing.mean, nothing.percentile(50), nothing.longest) == (0, 0, 0.0, 0, 0)
