"""The work queue: whatever replicas do, every row is sealed once and none is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extractor.replicas.leases import LeaseLimits, LeaseQueue

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=60)
LIMITS = st.builds(LeaseLimits, max_tokens=st.integers(1, 2000), min_tokens=st.integers(1, 500))


def a_queue(lengths, limits=None, first=0):
    return LeaseQueue(np.arange(first, first + len(lengths)), np.array(lengths), limits)


def accounted(queue, holders):
    """(queued, held, sealed) tokens must add up to all."""
    return queue.queued_tokens + sum(queue.held_tokens(h) for h in holders) + queue.sealed_tokens


@given(LENGTHS, LIMITS, st.data())
def test_nothing_is_lost_or_handed_out_twice(lengths, limits, data):
    queue = a_queue(lengths, limits)
    holders = ["r0", "r1", "r2"]
    sealed = []
    for _ in range(data.draw(st.integers(0, 60))):
        holder = data.draw(st.sampled_from(holders))
        action = data.draw(st.sampled_from(["take", "seal", "die"]))
        if action == "take":
            before = {h: queue.held(h) for h in holders}
            rows = queue.take(holder, 1 / 3)
            assert not set(rows) & set().union(*before.values(), sealed)
        elif action == "seal":
            some = sorted(queue.held(holder))[: data.draw(st.integers(0, 5))]
            sealed += queue.seal(some)
        else:
            left = queue.held(holder)
            assert queue.give_back(holder) == len(left)
        assert accounted(queue, holders) == queue.total_tokens
    while not queue.done:
        rows = queue.take("last", 1.0) or [row for h in holders for row in queue.held(h)]
        sealed += queue.seal(rows)
    assert sorted(sealed) == list(range(len(lengths)))
    assert queue.sealed_tokens == sum(lengths)
    assert queue.queued_tokens == 0


@given(LENGTHS, LIMITS)
def test_leases_hold_what_fits_and_at_least_one_sample(lengths, limits):
    queue = a_queue(lengths, limits)
    order = []
    while True:
        lacking = min(0.25 * sum(lengths) - queue.held_tokens("r"), 0.25 * queue.queued_tokens)
        fair = max(limits.min_tokens, int(limits.tail_share * lacking))
        rows = queue.take("r", 0.25)
        if not rows:
            break
        tokens = [lengths[row] for row in rows]
        assert len(rows) == 1 or sum(tokens) <= min(limits.max_tokens, fair)
        order += rows
    assert order == list(range(len(lengths)))


def test_leases_shrink_towards_the_end():
    queue = a_queue([10] * 10_000, LeaseLimits(max_tokens=20_000, min_tokens=100))
    sizes = []
    while rows := queue.take("r", 1 / 4):
        sizes.append(10 * len(rows))
        queue.seal(rows)
    assert sizes[0] == 12_500
    assert sizes[-1] <= 100
    assert sizes == sorted(sizes, reverse=True)


def test_a_slow_replica_gets_less():
    queue = a_queue([10] * 10_000, LeaseLimits(min_tokens=10))
    assert len(queue.take("slow", 0.1)) == 500
    assert len(queue.take("fast", 0.9)) == 4275


def test_what_is_held_counts_against_the_next_lease():
    queue = a_queue([10] * 1000, LeaseLimits(min_tokens=30))
    assert [len(queue.take("r", 0.1)) for _ in range(5)] == [50, 25, 12, 6, 3]


def test_what_comes_back_goes_first():
    queue = a_queue([5] * 6, LeaseLimits(min_tokens=10, max_tokens=10))
    assert queue.take("a", 1) == [0, 1]
    assert queue.take("b", 1) == [2, 3]
    queue.seal([0])
    assert queue.give_back("a") == 1
    assert queue.returned == 1
    assert queue.take("b", 1) == [1, 4]
    assert queue.give_back("nobody") == 0
    assert queue.returned == 1


def test_a_seal_found_late_takes_its_row_out_of_the_queue():
    queue = a_queue([5, 6, 7], LeaseLimits(min_tokens=100))
    queue.take("dead", 1)
    queue.give_back("dead")
    assert queue.seal([1]) == [1]
    assert queue.seal([1, 1]) == []
    assert queue.take("r", 1) == [0, 2]
    assert queue.queued_tokens == 0


def test_rows_need_not_start_at_zero():
    queue = a_queue([3, 3], LeaseLimits(min_tokens=100), first=40)
    assert queue.take("r", 1) == [40, 41]
    with pytest.raises(KeyError):
        queue.seal([0])
