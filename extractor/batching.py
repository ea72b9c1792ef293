"""Batches from lengths: in a stream's order for an engine, and balanced over ranks for training."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from extractor.errors import UsageError
from extractor.packing import Ints, check_lengths, compiled, from_lists, pack
from extractor.sizes import counted

Floats = npt.NDArray[np.float64]


def pack_in_order(lengths: npt.ArrayLike, budget: int, window: int = 256) -> tuple[Ints, Ints]:
    """Bins for a stream: the oldest waiting sample opens a bin, the longest that fit among the next `window` waiting
    ones fill it up. No sample is split, none waits for more than `window` bins, and a bin keeps the stream's order.

    Arguments, results and errors as for `pack`; `window` is in samples, and 1 gives the strict order (next fit).
    """
    lengths = check_lengths(lengths, budget)
    if window < 1:
        raise UsageError(f"a packing window of {window} samples is not possible; at least 1 is needed; raise it")
    return _fill_in_order(lengths, budget, window)


def pack_in_order_ref(lengths: npt.ArrayLike, budget: int, window: int = 256) -> tuple[Ints, Ints]:
    """The definition of `pack_in_order`, bit for bit."""
    arriving = list(enumerate(check_lengths(lengths, budget).tolist()))
    bins: list[list[int]] = []
    while arriving:
        members, room = [arriving.pop(0)], budget
        room -= members[0][1]
        while fitting := [sample for sample in arriving[: window - len(members)] if sample[1] <= room]:
            longest = max(fitting, key=lambda sample: sample[1])
            arriving.remove(longest)
            members.append(longest)
            room -= longest[1]
        bins.append(sorted(index for index, _ in members))
    return from_lists(bins)


def attention_costs(lengths: npt.ArrayLike, hidden_size: int) -> Floats:
    """Cost of a sample in a causal transformer, in tokens: T * (1 + T / (6 * hidden_size)).

    Per token and layer the matrices take about 24 * H^2 operations, attention 4 * H * T: even at T = 6 * H.
    """
    tokens = np.asarray(lengths, np.float64)
    return tokens * (1 + tokens / (6 * hidden_size))


def pack_balanced(
    lengths: npt.ArrayLike, budget: int, num_ranks: int, costs: npt.ArrayLike | None = None
) -> tuple[Ints, Ints]:
    """Bins for data-parallel training: as `pack`, but their number is a multiple of `num_ranks`, and bins
    s * num_ranks + r, r = 0 .. num_ranks - 1, which the ranks work on at the same time, cost nearly the same.

    costs: [N] floats, cost of each sample (tokens when left out; see `attention_costs`). Nothing is dropped: where bins
    are missing for a last full step, the costliest ones are halved. Only where there are fewer samples than bins
    needed, the cheapest bins stand twice: len(indices) - N tells how many samples do. Steps come from costly to cheap;
    shuffle them as a whole. Raises UsageError as `pack`, and when there are fewer samples than ranks.
    """
    lengths = check_lengths(lengths, budget)
    costs = np.asarray(lengths if costs is None else costs, np.float64)
    offsets, indices = share(*pack(lengths, budget), costs, num_ranks)
    return take_bins(offsets, indices, even_steps(offsets, indices, costs, num_ranks))


def share(offsets: Ints, indices: Ints, costs: Floats, num_ranks: int) -> tuple[Ints, Ints]:
    """Make the number of bins a multiple of `num_ranks`, as `pack_balanced` says; whole bins keep their place."""
    num_samples, num_bins = costs.size, offsets.size - 1
    if num_ranks < 1 or num_samples < num_ranks:
        raise UsageError(
            f"{counted(num_samples, 'sample')} can't be shared by {counted(num_ranks, 'rank')} as batches; "
            "each rank needs one; lower the world size or add samples"
        )
    missing = -num_bins % num_ranks
    if num_samples >= num_bins + missing:
        return _split(offsets, indices, costs, missing)
    cheapest = np.argsort(_bin_costs(offsets, indices, costs), kind="stable")[:missing]
    return take_bins(offsets, indices, np.concatenate([np.arange(num_bins), cheapest]))


def even_steps(offsets: Ints, indices: Ints, costs: Floats, num_ranks: int) -> Ints:
    """Bin numbers [B], from costly to cheap, so that each `num_ranks` consecutive ones cost nearly the same. Each
    second step is reversed: otherwise rank 0 has the costliest bin of every step."""
    order = np.argsort(-_bin_costs(offsets, indices, costs), kind="stable").reshape(-1, num_ranks)
    order[1::2] = order[1::2, ::-1]
    return order.ravel()


def share_out(lengths: npt.ArrayLike, num_ranks: int) -> Ints:
    """The rank [N] of each sample, so that ranks have as many tokens: from long to short, there and back again."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    turns = np.arange(order.size) // num_ranks
    places = np.arange(order.size) % num_ranks
    ranks = np.empty(order.size, np.int64)
    ranks[order] = np.where(turns % 2, num_ranks - 1 - places, places)
    return ranks


def take_bins(offsets: Ints, indices: Ints, order: Ints) -> tuple[Ints, Ints]:
    """The bins `order` [K], in that order, as CSR."""
    sizes = np.diff(offsets)[order]
    taken = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=taken[1:])
    positions = np.arange(taken[-1]) + np.repeat(offsets[:-1][order] - taken[:-1], sizes)
    return taken, indices[positions]


def _bin_costs(offsets: Ints, indices: Ints, costs: Floats) -> Floats:
    return np.add.reduceat(costs[indices], offsets[:-1])


def _split(offsets: Ints, indices: Ints, costs: Floats, missing: int) -> tuple[Ints, Ints]:
    """`missing` bins more, each by halving the costliest one that holds two samples or more."""
    bin_costs = np.where(np.diff(offsets) > 1, _bin_costs(offsets, indices, costs), -1)  # one sample can't be split
    chosen = np.argsort(-bin_costs, kind="stable")[:missing]
    heap = [(-bin_costs[b], b, indices[offsets[b] : offsets[b + 1]].tolist()) for b in chosen]
    heapq.heapify(heap)
    for number in range(missing):
        _, b, members = heapq.heappop(heap)
        for part, name in zip(_halves(members, costs), (b, offsets.size - 1 + number), strict=True):
            heapq.heappush(heap, (-costs[part].sum() if len(part) > 1 else 1.0, name, part))
    kept_offsets, kept = take_bins(offsets, indices, np.setdiff1d(np.arange(offsets.size - 1), chosen))
    new_offsets, new = from_lists([members for _, _, members in sorted(heap)])
    return np.concatenate([kept_offsets, kept_offsets[-1] + new_offsets[1:]]), np.concatenate([kept, new])


def _halves(members: list[int], costs: Floats) -> tuple[list[int], list[int]]:
    """Two parts of nearly equal cost: each sample, costly ones first, goes to the cheaper part."""
    parts: tuple[list[int], list[int]] = ([], [])
    totals = [0.0, 0.0]
    for index in sorted(members, key=lambda index: -costs[index]):
        cheaper = int(totals[1] < totals[0])
        parts[cheaper].append(index)
        totals[cheaper] += costs[index]
    return parts


@compiled
def _fill_in_order(lengths: Ints, budget: int, window: int) -> tuple[Ints, Ints]:
    offsets, indices = np.empty(lengths.size + 1, np.int64), np.empty(lengths.size, np.int64)
    waiting = np.empty(min(window, lengths.size), np.int64)
    offsets[0] = num_bins = placed = num_waiting = arrived = 0
    while placed < lengths.size:
        while num_waiting < waiting.size and arrived < lengths.size:
            waiting[num_waiting] = arrived
            num_waiting += 1
            arrived += 1
        room, best = budget, 0
        while best >= 0:
            indices[placed] = waiting[best]
            room -= lengths[waiting[best]]
            placed += 1
            num_waiting -= 1
            waiting[best:num_waiting] = waiting[best + 1 : num_waiting + 1]
            best = -1
            for w in range(num_waiting):
                if lengths[waiting[w]] <= room and (best < 0 or lengths[waiting[w]] > lengths[waiting[best]]):
                    best = w
        indices[offsets[num_bins] : placed].sort()
        num_bins += 1
        offsets[num_bins] = placed
    return offsets[: num_bins + 1].copy(), indices
