"""How fast and how full is the packer, beside TRL's and axolotl's as they ship?

    pytest bench/packing.py -s

Lengths: the mix of a large EAGLE-3 corpus (7% agent trajectories near 16k tokens, the rest log-normal), capped. One
core, the thread's own time. A peer that isn't installed is named as such (pip install --no-deps trl axolotl==0.19.0).
TRL and axolotl are timed at 40,114 and 200,000 samples only, since both grow faster than linearly: at 10 million they
take minutes. TRL's function also gathers the packed tokens; it gets a column of nulls, which has lengths but no bytes,
so that only its packing is timed. Each row reports its fill: tokens over budget times bins.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from settings import size
from timing import Variant, compare

from extractor.batching import pack_balanced, pack_in_order
from extractor.packing import pack, pack_ref

CORPUS = 40_114
SIZES = size([CORPUS, 200_000, 10_000_000], toy=[200])
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
    import pyarrow as pa
    from trl import data_utils

    offsets = np.concatenate([[0], np.cumsum(lengths)])
    table = pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, pa.nulls(int(offsets[-1])))})
    return data_utils._pack_bfd, (table, budget)


def axolotl(lengths: np.ndarray, budget: int) -> Call:
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
PEERS = {"TRL 'bfd'": "trl", "axolotl multipack": "axolotl"}
SLOW = (*PEERS, "one sample at a time, Python")
NOTES = {
    "pack": "best fit decreasing, as CSR",
    "np.argsort(stable), the sort alone": "no packing",
    "TRL 'bfd'": "with the gather of the packed tokens, here of nulls",
    "one sample at a time, Python": "pack's definition",
}


def num_bins(name: str, result: Any) -> int | None:
    if name.startswith("np"):
        return None
    if name.startswith("axolotl"):
        return len(result)
    return len(result[0]) - 1 if isinstance(result, tuple) else int(result.num_rows)


def variant(name: str, lengths: np.ndarray, budget: int) -> Variant:
    """A row that also says how full the bins were: tokens over budget times bins, and bins over the lower bound."""
    function, args = VARIANTS[name](lengths, budget)
    results: list[Any] = []

    def run() -> None:
        results[:] = [function(*args)]

    def extra() -> dict[str, Any]:
        bins = num_bins(name, results[0])
        bound = -(-int(lengths.sum()) // budget)
        return {"fill": f"{lengths.sum() / budget / bins:.4%}", "bins over the bound": bins - bound} if bins else {}

    return Variant(run, NOTES.get(name, ""), extra=extra)


@pytest.mark.parametrize("samples", SIZES)
@pytest.mark.parametrize(("cap", "budget"), CAPS_AND_BUDGETS)
def test_packing(benchmark, cap, budget, samples):
    lengths = corpus(samples, cap)
    names = [name for name in VARIANTS if samples <= PEERS_UP_TO or name not in SLOW]
    absent = [name for name in names if name in PEERS and importlib.util.find_spec(PEERS[name]) is None]
    variants = {name: variant(name, lengths, budget) for name in names if name not in absent}
    remark = "".join(f"{name} is not measured: pip install {PEERS[name]}. " for name in absent)
    title = f"packing {samples:,} samples, cap {cap:,}, budget {budget:,}, CPU time"
    rounds = 3 if samples >= PEERS_UP_TO else 5
    fields = {"rounds": rounds, "clock": time.thread_time, "remark": remark}
    compare(benchmark, title, variants, work=samples / 1e6, rate_unit="M samples/s", **fields)
