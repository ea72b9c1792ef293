"""Packing: which samples share a batch, so that no token of the budget is wasted.

Pure functions of lengths, compiled by Numba. Bins come as CSR: bin b holds indices[offsets[b]:offsets[b + 1]].
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from extractor.errors import UsageError
from extractor.jit import numba

Ints = npt.NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])
MAX_BUDGET = 2**26  # tables of one entry per token of the budget: 1.2 GB here


def pack(lengths: npt.ArrayLike, budget: int) -> tuple[Ints, Ints]:
    """Best fit decreasing: few bins, each of at most `budget` tokens.

    lengths: [N] integers >= 1, tokens per sample.  budget: tokens per bin.
    Returns offsets [B + 1] int64 and indices [N] int64; each index stands exactly once, a bin lists its longest sample
    first. Deterministic: equal lengths are taken in index order, so a caller who permutes `lengths` gets random bins.
    Linear in N: samples of one length are placed together, in as many equal bins as there are. Raises UsageError for a
    length below 1 or over the budget, naming the first one.
    """
    lengths = check_lengths(lengths, budget)
    counts = _histogram(lengths, int(lengths.max(initial=0)))
    bins, num_bins = _assign(counts, budget, lengths.size)
    return _to_csr(lengths, counts, bins, num_bins)


def pack_ref(lengths: npt.ArrayLike, budget: int) -> tuple[Ints, Ints]:
    """The definition of `pack`: one sample at a time, longest first, into the fullest bin that has room. `pack` agrees
    in the number of bins and in their fill; among bins of equal fill it may choose another one."""
    lengths = check_lengths(lengths, budget)
    bins: list[list[int]] = []
    open_bins: list[tuple[int, int]] = []  # (room, bin), sorted
    for index in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[index])
        position = bisect.bisect_left(open_bins, (length, -1))
        if position == len(open_bins):
            bins.append([])
            open_bins.append((budget, len(bins) - 1))
        room, chosen = open_bins.pop(position)
        bins[chosen].append(index)
        bisect.insort(open_bins, (room - length, chosen))
    return from_lists(bins)


def from_lists(bins: list[list[int]]) -> tuple[Ints, Ints]:
    """Lists of indices -> CSR."""
    offsets = np.zeros(len(bins) + 1, np.int64)
    np.cumsum([len(members) for members in bins], out=offsets[1:])
    return offsets, np.array([index for members in bins for index in members], np.int64)


def check_lengths(lengths: npt.ArrayLike, budget: int) -> Ints:
    """`lengths` as contiguous int64 [N]; UsageError unless all lie in [1, budget]."""
    if not 1 <= budget <= MAX_BUDGET:
        raise UsageError(
            f"a token budget of {budget} is not possible; 1 to {MAX_BUDGET} tokens are; choose one at least as large "
            "as the longest sample"
        )
    array = np.asarray(lengths)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UsageError(
            f"lengths have shape {array.shape} and dtype {array.dtype}; one integer per sample is needed; "
            "pass a list or 1-D array of token counts"
        )
    bad = np.flatnonzero((array < 1) | (array > budget))
    if bad.size:
        raise UsageError(_refusal(array, bad, budget))
    return np.ascontiguousarray(array, np.int64)


def _refusal(lengths: npt.NDArray[Any], bad: npt.NDArray[np.intp], budget: int) -> str:
    first = int(bad[0])
    return (
        f"sample {first} has {int(lengths[first])} tokens, outside 1 to the token budget of {budget} ({bad.size} such "
        f"of {lengths.size}, longest {int(lengths[bad].max())}); pass a larger token budget, or cap or drop "
        "such samples when they are prepared (`extractor prepare --max-length N --overlong truncate|drop`)"
    )


def compiled(function: Function) -> Function:
    try:
        return numba.njit(function, cache=True)  # type: ignore[no-any-return]
    except RuntimeError:  # neither the installation nor the user's cache folder can be written: compile per process
        return numba.njit(function)  # type: ignore[no-any-return]


@compiled
def _histogram(lengths: Ints, longest: int) -> Ints:
    counts = np.zeros(longest + 1, np.int64)
    for length in lengths:
        counts[length] += 1
    return counts


@compiled
def _mark(tree: npt.NDArray[np.uint8], room: int, value: int) -> None:
    node = tree.size // 2 + room
    while node and tree[node] != value:
        tree[node] = value
        node //= 2
        value = tree[2 * node] | tree[2 * node + 1]


@compiled
def _smallest_room(tree: npt.NDArray[np.uint8], length: int) -> int:
    """The smallest marked leaf >= length, -1 when there is none."""
    node = tree.size // 2 + length
    while not tree[node]:
        while node & 1:  # a right child: everything beside it is smaller
            node //= 2
        if not node:
            return -1
        node += 1
    while node < tree.size // 2:
        node *= 2
        node += not tree[node]
    return node - tree.size // 2


@compiled
def _push(
    heads: Ints, following: Ints, sizes: Ints, tree: npt.NDArray[np.uint8], room: int, first: int, n: int
) -> None:
    """Bins first .. first + n - 1 have `room` left. A group is known by its first bin; `following` chains groups."""
    if n and room:
        sizes[first] = n
        following[first] = heads[room]
        heads[room] = first
        _mark(tree, room, 1)


@compiled
def _assign(counts: Ints, budget: int, num_items: int) -> tuple[npt.NDArray[np.int32], int]:
    """bins [N]: the bin of each item, items sorted from long to short. Whole groups of equal bins are filled at once,
    so 10 million items take about 50,000 turns of the inner loop."""
    leaves = 1
    while leaves <= budget:
        leaves *= 2
    tree = np.zeros(2 * leaves, np.uint8)  # a binary tree of flags over rooms: is there a bin with this room?
    heads = np.full(budget + 1, -1, np.int64)
    following, sizes = np.empty(num_items, np.int64), np.empty(num_items, np.int64)
    bins = np.empty(num_items, np.int32)
    item = num_bins = 0
    for length in range(counts.size - 1, 0, -1):
        left = counts[length]
        while left:
            room = _smallest_room(tree, length)
            if room < 0:
                room, opened = budget, -(-left // (budget // length))
                _push(heads, following, sizes, tree, room, num_bins, opened)
                num_bins += opened
            first = heads[room]
            size, each = sizes[first], room // length
            heads[room] = following[first]
            if heads[room] < 0:
                _mark(tree, room, 0)
            full = min(size, left // each)
            part = left - full * each if full < size else 0  # items of the one bin that gets fewer than `each`
            placed = full * each + part
            for k in range(placed):
                bins[item + k] = first + k // each
            rest = first + full + (part > 0)
            _push(heads, following, sizes, tree, room, rest, first + size - rest)
            if part:
                _push(heads, following, sizes, tree, room - part * length, first + full, 1)
            _push(heads, following, sizes, tree, room - each * length, first, full)
            item += placed
            left -= placed
    return bins, num_bins


@compiled
def _to_csr(lengths: Ints, counts: Ints, bins: npt.NDArray[np.int32], num_bins: int) -> tuple[Ints, Ints]:
    offsets = np.zeros(num_bins + 1, np.int64)
    for b in bins:
        offsets[b + 1] += 1
    for b in range(num_bins):
        offsets[b + 1] += offsets[b]
    items = np.zeros_like(counts)  # next item of each length
    for length in range(counts.size - 1, 0, -1):
        items[length - 1] = items[length] + counts[length]
    cursors, indices = offsets[:-1].copy(), np.empty(lengths.size, np.int64)
    for index, length in enumerate(lengths):
        b = bins[items[length]]
        items[length] += 1
        indices[cursors[b]] = index
        cursors[b] += 1
    return offsets, indices
