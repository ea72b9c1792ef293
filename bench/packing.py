"""How fast and how full is the packer, beside TRL's and axolotl's as they ship?

    pytest bench/packing.py --benchmark-columns=median,iqr,rounds --benchmark-group-by=group

Lengths: the mix of a large EAGLE-3 corpus (7% agent trajectories near 16k tokens, the rest log-normal), capped. One
core. A peer that isn't installed is skipped; TRL and axolotl are timed at 40,114 and 200,000 samples only, since both
grow faster than linearly: at 10 million they take minutes. TRL's function also gathers the packed tokens; it gets a
column of nulls, which has lengths but no bytes, so that only its packing is timed.
Each row reports its fill: tokens over budget times bins.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

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


def trl(lengths: np.ndarray, budget: int) -> Call:
    pa = pytest.importorskip("pyarrow")
    trl_data = pytest.importorskip("trl.data_utils", reason="pip install trl to compare with it")
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    table = pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, pa.nulls(int(offsets[-1])))})
    return trl_data._pack_bfd, (table, budget)


def axolotl(lengths: np.ndarray, budget: int) -> Call:
    multipack = pytest.importorskip("axolotl.utils.samplers.multipack", reason="pip install axolotl to compare with it")
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


def num_bins(name: str, result: object) -> int | None:
    if name.startswith("np"):
        return None
    if name.startswith("axolotl"):
        return len(result)
    return len(result[0]) - 1 if isinstance(result, tuple) else result.num_rows


@pytest.mark.parametrize("samples", [CORPUS, PEERS_UP_TO, 10_000_000])
@pytest.mark.parametrize(("cap", "budget"), CAPS_AND_BUDGETS)
@pytest.mark.parametrize("name", VARIANTS)
def test_packing(benchmark, name, cap, budget, samples):
    if samples > PEERS_UP_TO and name in list(VARIANTS)[4:]:
        pytest.skip("minutes at this size")
    numba.set_num_threads(1)
    lengths = corpus(samples, cap)
    function, args = VARIANTS[name](lengths, budget)
    benchmark.group = f"{samples:,} samples, cap {cap:,}, budget {budget:,}"
    gc.collect()
    heavy = name in list(VARIANTS)[4:] or samples > PEERS_UP_TO
    result = benchmark.pedantic(function, args=args, rounds=3 if heavy else 9, warmup_rounds=1)
    bins = num_bins(name, result)
    if bins:
        bound = -(-int(lengths.sum()) // budget)
        fill = lengths.sum() / budget / bins
        benchmark.extra_info |= {"fill": float(fill), "bins": bins, "bins_over_bound": bins - bound, "bound": bound}
        print(f"\n{benchmark.group}: {name}: fill {fill:.5%}, {bins - bound} of {bound} bins over the lower bound")
