"""Packing: every property holds for random lengths, and each checker rejects a wrong packer."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extractor.batching import attention_costs, pack_balanced, pack_in_order, pack_in_order_ref, share_out, take_bins
from extractor.errors import UsageError
from extractor.packing import MAX_BUDGET, from_lists, pack, pack_ref

BUDGETS = st.integers(1, 70)
PACKERS = [pack, pack_ref, pack_in_order, pack_in_order_ref]


@st.composite
def cases(draw):
    budget = draw(BUDGETS)
    return draw(st.lists(st.integers(1, budget), max_size=120)), budget


def loads(lengths, offsets, indices):
    return [int(np.asarray(lengths)[indices[a:b]].sum()) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]


def check(lengths, budget, offsets, indices):
    assert offsets.dtype == indices.dtype == np.int64
    assert offsets[0] == 0
    assert offsets[-1] == len(lengths)
    assert (np.diff(offsets) > 0).all()
    assert sorted(indices.tolist()) == list(range(len(lengths)))
    assert max(loads(lengths, offsets, indices), default=0) <= budget


@pytest.mark.parametrize("packer", PACKERS)
@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_each_sample_once_and_no_bin_over_budget(packer, case):
    lengths, budget = case
    first, second = packer(lengths, budget), packer(np.array(lengths, np.int32), budget)
    check(lengths, budget, *first)
    assert [a.tolist() for a in first] == [a.tolist() for a in second]


@given(case=cases())
@settings(max_examples=300, deadline=None)
def test_best_fit_agrees_with_its_definition(case):
    lengths, budget = case
    assert sorted(loads(lengths, *pack(lengths, budget))) == sorted(loads(lengths, *pack_ref(lengths, budget)))


@given(case=cases(), window=st.integers(1, 20))
@settings(max_examples=200, deadline=None)
def test_stream_agrees_with_its_definition(case, window):
    lengths, budget = case
    got, expected = pack_in_order(lengths, budget, window), pack_in_order_ref(lengths, budget, window)
    assert [a.tolist() for a in got] == [a.tolist() for a in expected]
    bins = np.split(got[1], got[0][1:-1])
    assert all((np.diff(members) > 0).all() for members in bins)
    opened = [int(members.min()) for members in bins if members.size]
    assert opened == sorted(opened)
    if window == 1:
        assert got[1].tolist() == list(range(len(lengths)))


@given(case=cases(), ranks=st.integers(1, 9), quadratic=st.booleans())
@settings(max_examples=300, deadline=None)
def test_balanced_shares(case, ranks, quadratic):
    lengths, budget = case
    if len(lengths) < ranks:
        with pytest.raises(UsageError, match=rf"{len(lengths)} samples?.*{ranks} ranks?"):
            pack_balanced(lengths, budget, ranks)
        return
    costs = attention_costs(lengths, 1) if quadratic else None
    offsets, indices = pack_balanced(lengths, budget, ranks, costs)
    steps = -(-(pack(lengths, budget)[0].size - 1) // ranks)
    assert offsets.size - 1 == steps * ranks
    if len(lengths) >= steps * ranks:
        check(lengths, budget, offsets, indices)
    else:
        assert set(indices.tolist()) == set(range(len(lengths)))
        assert max(loads(lengths, offsets, indices)) <= budget
    costs = np.asarray(lengths if costs is None else costs)
    per_bin = np.add.reduceat(costs[indices], offsets[:-1])
    per_step = np.sort(per_bin.reshape(-1, ranks), axis=1)
    assert per_step.ravel()[np.argsort(-per_step.ravel())].tolist() == np.sort(per_bin)[::-1].tolist()
    assert (per_step[:-1, 0] >= per_step[1:, -1]).all()  # steps don't overlap: no other grouping is closer


def test_samples_are_shared_out_evenly():
    lengths = np.random.default_rng(2).lognormal(7, 0.9, 1000).astype(int)
    for ranks in (1, 2, 7):
        loads = np.bincount(share_out(lengths, ranks), weights=lengths, minlength=ranks)
        assert loads.max() / loads.mean() < 1.02
    assert share_out([5, 9, 7, 1, 3], 2).tolist() == [1, 0, 1, 0, 0]
    assert share_out([], 3).size == 0


def test_too_few_samples_to_split_are_repeated():
    offsets, indices = pack_balanced([8, 7, 6, 5, 4], 8, 4)
    assert np.diff(offsets).tolist() == [1] * 8
    assert sorted(indices.tolist()) == [0, 1, 2, 2, 3, 3, 4, 4]


def test_no_packer_beats_the_lower_bound_and_best_fit_is_near_it():
    lengths = np.random.default_rng(0).lognormal(7, 0.9, 100_000).clip(1, 8192).astype(int)
    for budget in (8192, 16384, 65536):
        bound = -(-lengths.sum() // budget)
        bins = pack(lengths, budget)[0].size - 1
        assert bound <= bins <= bound * 1.0005
        assert pack_in_order(lengths, budget, 4096)[0].size - 1 <= bound * 1.01


def test_bins_by_hand():
    offsets, indices = pack([2, 3, 3, 2, 1], 5)
    assert [sorted(indices[a:b].tolist()) for a, b in zip(offsets[:-1], offsets[1:], strict=True)] in (
        [[0, 1], [2, 3], [4]],
        [[1, 3], [0, 2], [4]],
    )
    assert pack([7] * 6, 15)[0].tolist() == [0, 2, 4, 6]
    assert pack([5], 5) == (pytest.approx([0, 1]), pytest.approx([0]))
    assert [a.tolist() for a in pack([], 5)] == [[0], []]
    assert take_bins(offsets, indices, np.array([2, 2]))[1].tolist() == [4, 4]


@pytest.mark.parametrize("packer", [*PACKERS, lambda lengths, budget: pack_balanced(lengths, budget, 1)])
@pytest.mark.parametrize(
    ("lengths", "budget", "message"),
    [
        (
            [3, 9, 12],
            8,
            r"sample 1 has 9 tokens.*budget of 8 \(2 such of 3, longest 12\).*larger token budget",
        ),
        ([3, 0], 8, "sample 1 has 0 tokens"),
        ([3, -2], 8, "sample 1 has -2 tokens"),
        ([1.5], 8, "dtype float64.*integer"),
        ([[1]], 8, r"shape \(1, 1\)"),
        ([True], 8, "dtype bool"),
        ([1], 0, "budget of 0"),
        ([1], MAX_BUDGET + 1, f"1 to {MAX_BUDGET}"),
    ],
)
def test_refusals_name_sample_and_numbers(packer, lengths, budget, message):
    with pytest.raises(UsageError, match=message):
        packer(lengths, budget)


def test_refused_window():
    with pytest.raises(UsageError, match="window of 0"):
        pack_in_order([1], 2, 0)


@pytest.mark.parametrize("bins", [[[0, 1], [2, 2]], [[0], [1]], [[0, 1, 2]], [[0, 1], [], [2]]])
def test_checker_rejects_wrong_bins(bins):
    with pytest.raises(AssertionError):
        check([3, 3, 3], 6, *from_lists(bins))


def test_read_only_installation_compiles_without_a_cache():
    """Numba finds no folder for compiled code, neither beside the source nor the user's."""
    code = "from extractor.packing import pack; print(pack([3, 2], 5)[1].tolist())"
    env = {**os.environ, "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator", "NUMBA_CACHE_DIR": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "[0, 1]"
