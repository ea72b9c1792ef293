"""The operations on hidden states. Each has several implementations that agree bit for bit with its reference."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from extractor.gather_check import check_gather
from extractor.implementations import BoundGather, implementation

__all__ = ["bind_gather", "gather_rows", "implementation"]


def gather_rows(
    layers: Sequence[Tensor],
    rows: Tensor,
    out: Tensor,
    counts: Tensor,
    owners: Tensor | None = None,
    num_rows: Tensor | None = None,
    residuals: Sequence[Tensor] | None = None,
    sum_in_fp32: bool = False,
) -> None:
    """Copy `rows` of each layer to `out`, converted to its dtype, and merge what was seen into `counts`.

    N tokens, R rows, L layers, H hidden size, S samples.
    layers      L tensors [N, H] bf16, fp16 or fp32 (one dtype; row stride may exceed H, unit column stride)
    rows        [R] int32, each in [0, N)
    out         [R, L, H] fp16 or bf16, contiguous. Equal dtypes are copied bit for bit; otherwise round to nearest
                even, a finite |x| beyond the largest finite value (65,504 in fp16) saturates, inf stays, NaN is quiet
    counts      [L, 4] int64: saturated, inf, NaN (added to); largest finite |x| before rounding as fp32 bits (merged)
    owners      [R] int32, each in [0, S): which sample a row belongs to. counts is then [S, L, 4]
    num_rows    [1] int32: only the first num_rows[0] rows are read, written and counted (safe in a CUDA graph)
    residuals   L tensors like layers: gather layers[l] + residuals[l], rounded to their dtype as torch (and so vLLM)
                does. Only at the layer boundary: vLLM's fused norm overwrites both tensors right after it
    sum_in_fp32 keep that sum in fp32 instead

    Raises UsageError for arguments that do not fit and, on the CPU, for rows or owners outside their range. A GPU
    can't raise without stalling: there such a row is stored, and counted, as NaN.
    """
    if torch.compiler.is_compiling():
        residual_list = None if residuals is None else list(residuals)
        torch.ops.hidden_state_extractor.gather_rows(
            list(layers), rows, out, counts, owners, num_rows, residual_list, sum_in_fp32
        )
    else:
        bind_gather(layers, rows, out, counts, owners, num_rows, residuals, sum_in_fp32)(layers, None, residuals)


def bind_gather(
    layers: Sequence[Tensor],
    rows: Tensor,
    out: Tensor,
    counts: Tensor,
    owners: Tensor | None = None,
    num_rows: Tensor | None = None,
    residuals: Sequence[Tensor] | None = None,
    sum_in_fp32: bool = False,
) -> BoundGather:
    """The hot path of gather_rows: check and describe the buffers that stay once, then call for each step.

    Takes the arguments of gather_rows; `layers` and `residuals` are examples whose number, dtype and hidden size stay.
    Returns a call `(layers, count=None, residuals=None)` that gathers the first `count` bound rows of this step's
    layers on the current stream of their device. It holds the bound buffers, and costs under 5 us.
    """
    check_gather(layers, rows, out, counts, owners, num_rows, residuals)
    bind = implementation(out.device.type).bind
    return bind(layers, rows, out, counts, owners, num_rows, residuals, sum_in_fp32)


# For torch.compile: the mutated arguments are declared, so that the graph keeps the call and its order.
_SCHEMA = (
    "gather_rows(Tensor[] layers, Tensor rows, Tensor(a!) out, Tensor(b!) counts, Tensor? owners=None, "
    "Tensor? num_rows=None, Tensor[]? residuals=None, bool sum_in_fp32=False) -> ()"
)


def _gather_rows_fake(*_arguments: object, **_keywords: object) -> None:
    """Nothing is returned, so there is no shape to compute; the arguments are checked when the call runs."""


def _register() -> torch.library.Library:
    library = torch.library.Library("hidden_state_extractor", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(_SCHEMA)  # type: ignore[no-untyped-call]
    for key in ("CPU", "CUDA"):
        library.impl("gather_rows", gather_rows, key)  # type: ignore[no-untyped-call]
    torch.library.register_fake("hidden_state_extractor::gather_rows", _gather_rows_fake, lib=library)
    return library


_LIBRARY = _register()  # the registration lives as long as this object
