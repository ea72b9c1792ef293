"""Do all implementations agree with the definition, bit for bit, on fresh random inputs?

The definition runs on the CPU, so nothing that the device gets wrong can be in both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from extractor.bench.gpu_report import NO_TIME, Check, Over, said
from extractor.gather_native import NativeGather
from extractor.kernels.gather_ref import gather_rows_ref
from extractor.native import NativeLibrary

Gather = Callable[..., None]
Case = dict[str, Any]
SOURCES = (torch.bfloat16, torch.float16, torch.float32)
STORED = (torch.float16, torch.bfloat16)
PAIRS = ("alone", "rounded", "fp32")
# (hidden, columns that a row is wider, first column). Rows of the first two start on 16 bytes and may be read by
# vectors, rows of the others not. Triton compiles anew for other sizes only where divisibility by 16 differs, so these
# are two kernels for each kind, 36 in all, of 0.3 to 0.9 s each (two slow cores, sm_90).
SIZES = ((512, 0, 0), (4096, 16, 0), (129, 0, 0), (520, 3, 0))
NUM_ALIGNED = 2
# What a model gives: also strides that only CUDA takes for aligned, and a first column that no vector may start at.
USUAL, USUAL_SIZES = (torch.bfloat16, torch.float16), ((4096, 8, 0), (512, 16, 3))
TOKENS, ROWS, LAYERS, SAMPLES = 37, 53, 3, 5


def by_library(found: NativeLibrary) -> Gather:
    def gather(layers: Any, rows: Any, out: Any, counts: Any, **rest: Any) -> None:
        NativeGather(found, layers, rows, out, counts, **rest)(layers, None, rest["residuals"])

    return gather


def states(hidden: int, dtype: torch.dtype, random: torch.Generator, wide: int, first: int) -> Tensor:
    """[TOKENS, hidden] cut from wider rows: half normal values, half random bit patterns, so inf and NaN too."""
    shape = (TOKENS, hidden + wide)
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    limit = 2 ** (8 * dtype.itemsize - 1)
    patterns = torch.randint(-limit, limit, shape, generator=random).to(integer).view(dtype)
    normal = (torch.randn(shape, generator=random) * 1e4).to(dtype)  # some of them beyond 65,504
    return normal.where(torch.rand(shape, generator=random) < 0.5, patterns)[:, first : first + hidden]


def kinds() -> Iterator[tuple[torch.dtype, torch.dtype, str, tuple[int, int, int], bool]]:
    """(source, stored, pair, size, owned). Half of the kinds have owners where rows are aligned, the others where they
    are not: each dtype, pair mode and alignment meets both, and no kernel is compiled for a case that shows no more."""
    for number, (source, stored, pair) in enumerate(itertools.product(SOURCES, STORED, PAIRS)):
        for place, size in enumerate(SIZES):
            yield source, stored, pair, size, (number + (place < NUM_ALIGNED)) % 2 == 0
    for pair, size in itertools.product(PAIRS, USUAL_SIZES):
        yield *USUAL, pair, size, True


def cases(random: torch.Generator) -> Iterator[tuple[str, Case]]:
    """Every kind, with padding and with rows outside."""
    for source, stored, pair, (hidden, wide, first), owned in kinds():

        def tensors(source: torch.dtype = source, size: tuple[int, int, int] = (hidden, wide, first)) -> list[Tensor]:
            return [states(size[0], source, random, *size[1:]) for _ in range(LAYERS)]

        rows = torch.randint(-1, TOKENS + 1, (ROWS,), generator=random).int()
        name = f"{source} -> {stored}, {pair}, H={hidden}" + (f" from {first} of {hidden + wide}" if wide else "")
        yield (
            name.replace("torch.", ""),
            {
                "layers": tensors(),
                "rows": rows,
                "owners": torch.randint(SAMPLES, (ROWS,), generator=random).sort().values.int() if owned else None,
                "num_rows": torch.tensor([ROWS - 4], dtype=torch.int32),
                "residuals": None if pair == "alone" else tensors(),
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
        whole = value.as_strided((value.shape[0], value.stride(0)), (value.stride(0), 1), 0)
        first = value.storage_offset()
        return whole.to(device)[:, first : first + value.shape[1]]
    return value.to(device)


def compare(what: str, gather: Gather, device: torch.device, seed: int, over: Over, inside: bool = False) -> Check:
    """Every case by `gather` on `device` and by the definition. `inside`: no rows outside, which a CPU refuses.

    An error ends it, and so does the time: the result then names the case that failed, or those left out.
    """
    check = Check(what)
    left: list[str] = []
    for name, case in cases(torch.Generator().manual_seed(seed)):
        if left or over():
            left.append(name)
            continue
        if inside:
            case["rows"] = case["rows"].clamp(0, TOKENS - 1)
        check.cases += 1
        try:
            got = run(gather, case, device)
        except Exception as error:
            check.failed = f"in {name}: {said(error)}"
            return check
        expected = run(gather_rows_ref, case, torch.device("cpu"))
        if not all(same_bits(a, b) for a, b in zip(got, expected, strict=True)):
            check.differ.append(name)
    if left:
        check.left_out = f"{len(left)} cases, from {left[0]} on: {NO_TIME}"
    return check


def same_bits(got: Tensor, expected: Tensor) -> bool:
    integer = torch.int16 if got.element_size() == 2 else torch.int64
    return bool(torch.equal(got.view(integer), expected.view(integer)))
