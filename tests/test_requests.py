"""Attribution of rows: by request and position, whatever the scheduler does, and the same on every rank."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extractor.capture import Chunk
from extractor.engines.requests import RequestTracker
from extractor.errors import EngineError


def _tracker(lengths, rank=0, ranks=1):
    tracker = RequestTracker(rank, ranks)
    for number, length in enumerate(lengths):
        tracker.begin(f"r{number}", f"s{number}", length)
    return tracker


def test_chunks_follow_the_order_of_the_batch():
    tracker = _tracker([5, 3])
    assert tracker.chunks([("r1", 3), ("r0", 2)], {"r0": 0, "r1": 0}) == [Chunk("s1", 0, 0, 3), Chunk("s0", 0, 3, 2)]
    assert tracker.chunks([("r0", 3)], {"r0": 2}) == [Chunk("s0", 2, 0, 3)]
    tracker.finish(["r0", "r1"])


def test_generated_tokens_and_padding_are_not_kept():
    tracker = _tracker([4, 2])
    tracker.chunks([("r0", 4)], {"r0": 0})
    # r0 now decodes (one row that is no prompt token), r1 starts behind it; rows after these are padding
    assert tracker.chunks([("r0", 1), ("r1", 2)], {"r0": 4, "r1": 0}) == [Chunk("s1", 0, 1, 2)]


def test_prompt_end_and_speculated_rows_in_one_step():
    assert _tracker([4]).chunks([("r0", 6)], {"r0": 0}) == [Chunk("s0", 0, 0, 4)]


def test_preempted_request_starts_again_and_keeps_its_owner():
    tracker = _tracker([6])
    tracker.chunks([("r0", 4)], {"r0": 0})
    assert tracker.begin("r0", "s0", 6)
    assert tracker.chunks([("r0", 6)], {"r0": 0}) == [Chunk("s0", 0, 0, 6)]
    tracker.finish(["r0"])


def test_foreign_requests_take_rows_but_are_not_kept():
    assert _tracker([2]).chunks([("warmup", 7), ("r0", 2)], {"r0": 0, "warmup": 0}) == [Chunk("s0", 0, 7, 2)]


def test_prefix_cache_hit_is_a_hole():
    with pytest.raises(EngineError, match=r"'s0'.*position 16 next, but 0 rows.*prefix caching"):
        _tracker([20]).chunks([("r0", 4)], {"r0": 16})


def test_doubled_rows_are_refused():
    tracker = _tracker([20])
    tracker.chunks([("r0", 10)], {"r0": 0})
    with pytest.raises(EngineError, match="position 8 next, but 10 rows"):
        tracker.chunks([("r0", 4)], {"r0": 8})


def test_a_request_that_ends_early_is_an_error():
    tracker = _tracker([20])
    tracker.chunks([("r0", 10)], {"r0": 0})
    with pytest.raises(EngineError, match="'s0'.*after 10 of 20"):
        tracker.finish(["r0"])


def test_owners_balance_tokens_and_ties_go_to_the_lower_rank():
    lengths = [10, 10, 3, 3, 4]
    owners = [next(rank for rank in range(2) if RequestTracker(rank, 2) and _owner(lengths, rank, i)) for i in range(5)]
    assert owners == [0, 1, 0, 1, 0]


def _owner(lengths, rank, index):
    tracker = RequestTracker(rank, 2)
    return [tracker.begin(f"r{i}", f"s{i}", n) for i, n in enumerate(lengths)][index]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    ranks=st.sampled_from([1, 2, 3, 8]),
    budget=st.integers(1, 64),
    seed=st.integers(0, 2**32 - 1),
)
def test_ranks_together_keep_each_row_exactly_once(lengths, ranks, budget, seed):
    """A random scheduler with chunks, preemption and a permuted batch: the union of all ranks' last captures is every
    position of every sample once, and the row each came from is the one the scheduler put it in."""
    rng = random.Random(seed)
    trackers = [_tracker(lengths, rank, ranks) for rank in range(ranks)]
    done = dict.fromkeys(range(len(lengths)), 0)
    kept: dict[int, dict[int, int]] = {i: {} for i in done}  # sample -> position -> owner rank
    while any(done[i] < lengths[i] for i in done):
        if rng.random() < 0.1:
            victim = rng.choice(list(done))
            if done[victim] < lengths[victim]:
                done[victim] = 0
        order, layout = _random_step(rng, done, lengths, budget)
        computed = {f"r{i}": done[i] for i in done}
        for rank, tracker in enumerate(trackers):
            for chunk in tracker.chunks(order, computed):
                sample = int(chunk.sample_id[1:])
                if chunk.position == 0:
                    kept[sample] = {}
                for offset in range(chunk.count):
                    assert layout[chunk.row + offset] == (sample, chunk.position + offset)
                    assert chunk.position + offset not in kept[sample]
                    kept[sample][chunk.position + offset] = rank
        for request, count in order:
            done[int(request[1:])] += count
    for tracker in trackers:
        tracker.finish([f"r{i}" for i in done])
    for sample, rows in kept.items():
        assert sorted(rows) == list(range(lengths[sample]))
        assert len(set(rows.values())) == 1


def _random_step(rng, done, lengths, budget):
    waiting = [i for i in done if done[i] < lengths[i]]
    rng.shuffle(waiting)
    order, layout, room = [], [], budget
    for i in waiting[: rng.randint(1, len(waiting))]:
        count = min(room, lengths[i] - done[i], rng.randint(1, budget))
        if count:
            order.append((f"r{i}", count))
            layout += [(i, done[i] + k) for k in range(count)]
            room -= count
    return order, layout
