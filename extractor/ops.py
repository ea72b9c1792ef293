"""The operations on hidden states. Each has several implementations that agree bit for bit with its reference."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from extractor.gather_check import check_gather, check_rows
from extractor.kernels.gather_ref import gather_rows_ref


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
    check_gather(layers, rows, out, counts, owners, num_rows, residuals)
    if rows.device.type == "cpu":
        taken = rows.numel() if num_rows is None else max(0, int(num_rows))
        check_rows(rows[:taken], layers[0].shape[0], None if owners is None else owners[:taken], counts.shape[0])
    if out.numel() and layers[0].shape[0]:
        gather_rows_ref(layers, rows, out, counts, owners, num_rows, residuals, sum_in_fp32)
