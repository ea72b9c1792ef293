"""An epoch's order: every rank the same plan, every sample once, even steps, another order next time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extractor.batching import attention_costs
from extractor.errors import UsageError
from extractor.loader.epoch import plan_epoch

LENGTHS = np.random.default_rng(1).lognormal(6, 0.8, 20_000).clip(1, 4096).astype(int)


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=150),
    world_size=st.integers(1, 5),
    seed=st.none() | st.integers(0, 3),
    window=st.integers(1, 60),
)
@settings(max_examples=200, deadline=None)
def test_every_sample_once_and_as_many_batches_on_each_rank(lengths, world_size, seed, window):
    if len(lengths) < world_size:
        with pytest.raises(UsageError, match="ranks"):
            plan_epoch(lengths, 50, world_size, seed=seed, window=window)
        return
    plan = plan_epoch(lengths, 50, world_size, seed=seed, window=window)
    batches = [plan.batch(s, r) for s in range(plan.num_steps) for r in range(world_size)]
    assert all(0 < np.asarray(lengths)[b].sum() <= 50 for b in batches)
    counts = np.bincount(np.concatenate(batches), minlength=len(lengths))
    assert counts.min() == 1
    assert (counts - 1).sum() == plan.num_repeated < max(2, world_size * 50)


def test_seed_and_epoch_decide_the_order():
    def order(**options):
        return plan_epoch(LENGTHS, 8192, 2, **options).indices.tolist()

    assert order(seed=3, epoch=1) == order(seed=3, epoch=1)
    assert len({tuple(order(seed=s, epoch=e)) for s in (0, 1) for e in (0, 1)}) == 4
    assert order(seed=None, epoch=0) == order(seed=None, epoch=7)


def test_without_a_seed_samples_keep_their_order():
    plan = plan_epoch(LENGTHS, 4096, 1, seed=None, window=32)
    assert np.abs(plan.indices - np.arange(LENGTHS.size)).max() < 32 * 8
    assert plan_epoch(LENGTHS, 4096, 1, seed=None, window=1).indices.tolist() == list(range(LENGTHS.size))


def test_batches_change_between_epochs():
    def neighbours(epoch):
        plan = plan_epoch(LENGTHS, 8192, 1, epoch=epoch, window=256)
        return {frozenset(plan.batch(s, 0).tolist()) for s in range(plan.num_steps)}

    assert len(neighbours(0) & neighbours(1)) < 0.1 * len(neighbours(0))


@pytest.mark.parametrize("quadratic", [False, True])
def test_steps_are_even_and_batches_full(quadratic):
    costs = attention_costs(LENGTHS, 256) if quadratic else None
    plan = plan_epoch(LENGTHS, 8192, 4, costs=costs)
    per_batch = np.add.reduceat((LENGTHS if costs is None else costs)[plan.indices], plan.offsets[:-1])
    steps = per_batch.reshape(-1, 4)
    lost = 1 - steps.mean() / steps.max(axis=1).mean()  # share of time that ranks wait for the costliest one
    assert lost < 0.01
    shuffled = np.random.default_rng(0).permutation(per_batch).reshape(-1, 4)  # negative control
    assert not quadratic or 1 - shuffled.mean() / shuffled.max(axis=1).mean() > 3 * lost
    assert LENGTHS.sum() / 8192 / (plan.offsets.size - 1) > 0.99
