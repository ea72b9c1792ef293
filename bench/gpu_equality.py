"""Do all implementations on a device agree with the definition, bit for bit, on fresh random inputs?

The definition runs on the CPU, so nothing that the device gets wrong can be in both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from extractor.kernels.gather_ref import gather_rows_ref

Gather = Callable[..., None]
Case = dict[str, Any]
SOURCES = (torch.bfloat16, torch.float16, torch.float32)
STORED = (torch.float16, torch.bfloat16)
PAIRS = ("alone", "rounded", "fp32")
# (hidden, columns that a row is wider): aligned, odd, a slice on 16-byte boundaries, a slice beside them.
SIZES = ((512, 0), (129, 0), (4096, 8), (520, 3))
TOKENS, ROWS, LAYERS, SAMPLES = 37, 53, 3, 5


def states(hidden: int, dtype: torch.dtype, random: torch.Generator, wide: int) -> Tensor:
    """[TOKENS, hidden] cut from wider rows: half normal values, half random bit patterns, so inf and NaN too."""
    shape = (TOKENS, hidden + wide)
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    limit = 2 ** (8 * dtype.itemsize - 1)
    patterns = torch.randint(-limit, limit, shape, generator=random).to(integer).view(dtype)
    normal = (torch.randn(shape, generator=random) * 1e4).to(dtype)  # some of them beyond 65,504
    return normal.where(torch.rand(shape, generator=random) < 0.5, patterns)[:, :hidden]


def cases(random: torch.Generator) -> Iterator[tuple[str, Case]]:
    """Every dtype and pair mode, aligned and not, with and without owners, with padding and with rows outside."""
    for source, stored, pair, (hidden, wide) in itertools.product(SOURCES, STORED, PAIRS, SIZES):
        layers = [states(hidden, source, random, wide) for _ in range(LAYERS)]
        rows = torch.randint(-1, TOKENS + 1, (ROWS,), generator=random).int()
        owners = torch.randint(SAMPLES, (ROWS,), generator=random).sort().values.int() if hidden != 129 else None
        name = f"{source} -> {stored}, {pair}, H={hidden}{'' if wide == 0 else f' of {hidden + wide}'}".replace(
            "torch.", ""
        )
        yield (
            name,
            {
                "layers": layers,
                "rows": rows,
                "owners": owners,
                "num_rows": torch.tensor([ROWS - 4], dtype=torch.int32),
                "residuals": None if pair == "alone" else [states(hidden, source, random, wide) for _ in range(LAYERS)],
                "sum_in_fp32": pair == "fp32",
                "stored": stored,
            },
        )


def run(gather: Gather, case: Case, device: torch.device) -> tuple[Tensor, Tensor]:
    """`out` and `counts` of one case on `device`; strides of the inputs are kept."""
    inputs = {name: moved(value, device) for name, value in case.items() if name != "stored"}
    layers = inputs.pop("layers")
    shape = (ROWS, LAYERS, layers[0].shape[1])
    out = torch.full(shape, 7.0, dtype=case["stored"], device=device)
    counts = torch.zeros(
        (SAMPLES, LAYERS, 4) if case["owners"] is not None else (LAYERS, 4), dtype=torch.int64, device=device
    )
    gather(layers, inputs.pop("rows"), out, counts, **inputs)
    return out.cpu(), counts.cpu()


def moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [moved(tensor, device) for tensor in value]
    if not isinstance(value, Tensor):
        return value
    if value.dim() == 2 and not value.is_contiguous():
        whole = value.as_strided((value.shape[0], value.stride(0)), (value.stride(0), 1))
        return whole.to(device)[:, : value.shape[1]]
    return value.to(device)


def check(implementations: Mapping[str, Gather], device: torch.device, seed: int) -> dict[str, Any]:
    """For each implementation: the number of cases and the first few that differ from the definition."""
    random = torch.Generator().manual_seed(seed)
    found: dict[str, Any] = {name: {"cases": 0, "differ": []} for name in implementations}
    for name, case in cases(random):
        expected = run(gather_rows_ref, case, torch.device("cpu"))
        for implementation, gather in implementations.items():
            found[implementation]["cases"] += 1
            got = run(gather, case, device)
            if not all(same_bits(a, b) for a, b in zip(got, expected, strict=True)):
                found[implementation]["differ"].append(name)
    return found


def same_bits(got: Tensor, expected: Tensor) -> bool:
    integer = torch.int16 if got.element_size() == 2 else torch.int64
    return bool(torch.equal(got.view(integer), expected.view(integer)))
