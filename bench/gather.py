"""How close is the CPU gather to a memcpy of its output, beside Numba and torch?

    pytest bench/gather.py -s --benchmark-disable-gc --benchmark-columns=median,iqr,rounds

4,096 tokens x 3 layers x 4,096 or 7,168, bf16 -> fp16 with counting, alone and as hidden + residual; one thread. Both
torch variants leave the counting out: `preallocated` writes into buffers made before, `idiomatic` is the one line that
one would write. Equality of every variant with the definition is checked before anything is timed.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence

import pytest
import torch
from settings import size
from timing import Variant, buffers_beyond_caches, compare, rotation
from torch import Tensor

from extractor import ops
from extractor.gather_native import NativeGather
from extractor.kernels.gather_numba import gather_rows_numba
from extractor.kernels.gather_ref import gather_rows_ref
from extractor.native import NativeMissingError, load

TOKENS, LAYERS = size(4096, toy=64), 3
Layers = Sequence[Tensor]
Run = Callable[[Tensor], None]  # fills `out`


def memcpy(source: Tensor) -> Run:
    return lambda out: ctypes.memmove(out.data_ptr(), source.data_ptr(), out.nbytes) and None


def compiled(layers: Layers, residuals: Layers | None, rows: Tensor, out: Tensor, counts: Tensor) -> Run:
    bound: dict[int, NativeGather] = {}

    def run(out: Tensor) -> None:
        if out.data_ptr() not in bound:
            bound[out.data_ptr()] = NativeGather(load("cpu"), layers, rows, out, counts, None, None, residuals)
        bound[out.data_ptr()](layers, None, residuals)

    return run


def numba(layers: Layers, residuals: Layers | None, rows: Tensor, out: Tensor, counts: Tensor) -> Run:
    return lambda out: gather_rows_numba(layers, rows, out, counts, None, None, residuals)


def torch_preallocated(layers: Layers, residuals: Layers | None, rows: Tensor, out: Tensor, counts: Tensor) -> Run:
    picked, added = torch.empty(2, rows.numel(), layers[0].shape[1], dtype=layers[0].dtype)
    index = rows.long()

    def run(out: Tensor) -> None:
        for slot, layer in enumerate(layers):
            torch.index_select(layer, 0, index, out=picked)
            if residuals is not None:
                torch.index_select(residuals[slot], 0, index, out=added)
                picked.add_(added)
            out[:, slot].copy_(picked)

    return run


def torch_idiomatic(layers: Layers, residuals: Layers | None, rows: Tensor, out: Tensor, counts: Tensor) -> Run:
    index = rows.long()

    def run(out: Tensor) -> None:
        states = layers if residuals is None else [a + b for a, b in zip(layers, residuals, strict=True)]
        torch.stack([state[index] for state in states], dim=1).to(torch.float16)

    return run


CPP = "C++"
VARIANTS = {
    CPP: compiled,
    "Numba": numba,
    "torch, preallocated, no counts": torch_preallocated,
    "torch, idiomatic, no counts": torch_idiomatic,
}


NOTES = {
    "memcpy of the output": "the output's bytes, nothing else",
    "torch, preallocated, no counts": "does not count; buffers made before",
    "torch, idiomatic, no counts": "does not count; the one line that one would write",
}


def why_not_compiled() -> str:
    try:
        load("cpu")
    except NativeMissingError as error:
        return f"{CPP} can't be measured: {error}"
    return ""


def checked(name: str, run: Run, out: Tensor, expected: Tensor) -> None:
    out.zero_()
    run(out)
    if name != "torch, idiomatic, no counts":  # it makes its own output
        assert torch.equal(out.view(torch.int16), expected.view(torch.int16)), name


@pytest.mark.parametrize("pair", [False, True], ids=["alone", "pair"])
@pytest.mark.parametrize("hidden", [4096, 7168])
def test_gather_beside_memcpy(benchmark, hidden, pair):
    torch.set_num_threads(1)
    states = [torch.randn(TOKENS, hidden, dtype=torch.bfloat16) * 20 for _ in range(LAYERS * (1 + pair))]
    layers, residuals = states[:LAYERS], states[LAYERS:] if pair else None
    rows, counts = torch.arange(TOKENS, dtype=torch.int32), torch.zeros(LAYERS, 4, dtype=torch.int64)
    expected = torch.zeros(TOKENS, LAYERS, hidden, dtype=torch.float16)
    gather_rows_ref(layers, rows, expected, counts, None, None, residuals)
    outs = rotation(lambda: torch.zeros_like(expected), buffers_beyond_caches(expected.nbytes, at_most=3))
    absent = why_not_compiled()
    makers = {name: make for name, make in VARIANTS.items() if not (absent and name == CPP)}
    runs = {name: make(layers, residuals, rows, expected, counts) for name, make in makers.items()}
    for name, run in runs.items():
        checked(name, run, next(outs), expected)
    variants = {"memcpy of the output": memcpy(expected), **runs}
    calls = {
        name: Variant(lambda run=run: run(next(outs)), NOTES.get(name, "counts")) for name, run in variants.items()
    }
    shape = f"[{TOKENS}, {LAYERS}, {hidden}] bf16{' + bf16' if pair else ''} -> fp16"
    title = f"gather {shape}, one thread, CPU time"
    gigabytes = expected.nbytes / 1e9
    compare(benchmark, title, calls, rounds=9, clock=time.thread_time, work=gigabytes, rate_unit="GB/s", remark=absent)


@pytest.mark.parametrize("way", ["bound", "generic"])
def test_overhead_of_a_call(benchmark, way):
    """A call that gathers nothing: what the engine's thread pays for each step besides the work itself."""
    layers = [torch.zeros(8, 4096, dtype=torch.bfloat16) for _ in range(LAYERS)]
    rows, out = torch.zeros(8, dtype=torch.int32), torch.zeros(8, LAYERS, 4096, dtype=torch.float16)
    counts = torch.zeros(LAYERS, 4, dtype=torch.int64)
    if way == "bound":
        benchmark(ops.bind_gather(layers, rows, out, counts), layers, 0)
    else:
        benchmark(ops.gather_rows, layers, rows[:0], out[:0], counts)
