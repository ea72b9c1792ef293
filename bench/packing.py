"""How fast and how full is the packer, beside TRL's and axolotl's as they ship?

    pytest bench/packing.py -s

Lengths: the mix of a large EAGLE-3 corpus (7% agent trajectories near 16k tokens, the rest log-normal), capped. One
core, the thread's own time. A peer that isn't installed is left out (pip install --no-deps trl axolotl==0.19.0). TRL,
axolotl and the plain loop are timed up to 200,000 samples; at 10 million they take minutes. TRL's function also gathers
the packed tokens; it gets a column of nulls, which has lengths but no bytes, so that only its packing is timed.
Fill is tokens over budget times bins.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from timing import report, side_by_side

from extractor.batching import pack_balanced, pack_in_order
from extractor.packing import pack, pack_ref

CORPUS = 40_114
PEERS_UP_TO = 200_000
Call = tuple[Callable[..., Any], tuple[Any, ...]]
CAPS_AND_BUDGETS = [(8192, 8192), (16384, 16384), (16384, 65536)]


def corpus(samples: int, cap: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    agents = samples * 2800 // CORPUS
    parts = [rng.normal(16_025, 1_500, agents)]
    for median in (900, 1800, 2500, 3200, 4000):
        parts.append(rng.lognormal(np.log(median), 0.7, -(-(samples - agents) // 5)))
    return rng.permutation(np.concatenate(parts)[:samples].clip(1, cap).astype(np.int64))


def trl(lengths: np.ndarray, budget: int) -> Call | None:
    if importlib.util.find_spec("trl") is None:
        return None
    from trl import data_utils

    offsets = np.concatenate([[0], np.cumsum(lengths)])
    table = pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, pa.nulls(int(offsets[-1])))})
    return data_utils._pack_bfd, (table, budget)


def axolotl(lengths: np.ndarray, budget: int) -> Call | None:
    if importlib.util.find_spec("axolotl") is None:
        return None
    from axolotl.utils.samplers import multipack

    return multipack.pack_parallel, (lengths, budget, 100_000, 100_000, 1)


def numpy_sort(lengths: np.ndarray, budget: int) -> Call:
    return np.argsort, (lengths, 0, "stable")


def ours(function: Callable[..., Any]) -> Callable[[np.ndarray, int], Call]:
    return lambda lengths, budget: (function, (lengths, budget))


VARIANTS = {
    "pack": ours(pack),
    "pack_in_order, window 256": ours(pack_in_order),
    "pack_balanced, 8 ranks": lambda lengths, budget: (pack_balanced, (lengths, budget, 8)),
    "np.argsort(stable), the sort alone": numpy_sort,
    "TRL 'bfd'": trl,
    "axolotl multipack": axolotl,
    "one sample at a time, Python": ours(pack_ref),
}


SLOW = ("TRL 'bfd'", "axolotl multipack", "one sample at a time, Python")


def num_bins(name: str, result: object) -> int | None:
    if name.startswith("np"):
        return None
    if name.startswith("axolotl"):
        return len(result)
    return len(result[0]) - 1 if isinstance(result, tuple) else result.num_rows


@pytest.mark.parametrize(("cap", "budget"), CAPS_AND_BUDGETS)
@pytest.mark.parametrize("samples", [CORPUS, PEERS_UP_TO, 10_000_000])
def test_packing_lengths(benchmark, samples, cap, budget):
    lengths = corpus(samples, cap)
    bound = -(-int(lengths.sum()) // budget)
    names = [name for name in VARIANTS if samples <= PEERS_UP_TO or name not in SLOW]
    calls = {name: VARIANTS[name](lengths, budget) for name in names}
    variants = {name: partial(call[0], *call[1]) for name, call in calls.items() if call is not None}
    for name, run in variants.items():
        bins = num_bins(name, run())
        if bins:
            fill = lengths.sum() / budget / bins
            benchmark.extra_info[f"{name}: fill"] = float(fill)
            print(f"\n{name}: fill {fill:.5%}, {bins - bound} of {bound} bins over the lower bound", end="")
    rounds = 3 if samples > CORPUS else 9
    arguments = {"rounds": rounds, "warmup": 0, "clock": time.thread_time}
    seconds = benchmark.pedantic(side_by_side, args=(variants,), kwargs=arguments, rounds=1)
    print(report(benchmark, seconds, "pack", f"{samples:,} samples, cap {cap:,}, budget {budget:,}, CPU time"))
