"""The definition of `gather_rows`, in torch: every implementation must agree with it bit for bit.

Shapes: N tokens of the step, R rows, L layers, H hidden size, S samples.
Counts per layer: COLUMNS; the first three are sums, the last is the largest finite |x| as fp32 bits (bits of
non-negative floats sort like the floats, so merging is an integer maximum).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

COLUMNS = ("saturated", "inf", "nan", "max_abs_bits")
# A NaN that was computed or converted is stored as this pattern: hardware disagrees about signs and payloads.
CANONICAL_NAN = {torch.float16: 0x7E00, torch.bfloat16: 0x7FC0}


def gather_rows_ref(
    layers: Sequence[Tensor],
    rows: Tensor,
    out: Tensor,
    counts: Tensor,
    owners: Tensor | None = None,
    num_rows: Tensor | None = None,
    residuals: Sequence[Tensor] | None = None,
    sum_in_fp32: bool = False,
) -> None:
    """Write `out[r, l] = convert(layers[l][rows[r]])` and merge what was seen into `counts`. Never synchronises.

    layers      L tensors [N, H] bf16, fp16 or fp32 of one dtype; unit column stride
    rows        [R] int32, each in [0, N); a row outside is written and counted as NaN (CPU callers check before)
    out         [R, L, H] fp16 or bf16, contiguous
    counts      [L, 4] int64, or [S, L, 4] with owners; added to, the last column max-merged
    owners      [R] int32 in [0, S): the sample that a row belongs to; a row owned by none is written as NaN, uncounted
    num_rows    [1] int32 beside the layers: only the first num_rows[0] rows are read, written and counted
    residuals   L tensors like layers: the state is layers[l] + residuals[l], rounded to their dtype as torch does
    sum_in_fp32 keep that sum in fp32 instead
    """
    index, taken, bad = _selection(rows, num_rows, layers[0].shape[0])
    samples = counts if owners is not None else counts.unsqueeze(0)
    owner = torch.zeros_like(index) if owners is None else owners.long()
    owned = (owner >= 0) & (owner < samples.shape[0])
    owner = owner.where(owned, 0)
    bad = bad | (taken & ~owned)
    for slot, layer in enumerate(layers):
        state = layer[index]
        if residuals is not None:
            state = _add(state, residuals[slot][index], sum_in_fp32)
        state = state.masked_fill(bad[:, None], float("nan"))
        is_copy = state.dtype == out.dtype and residuals is None
        stored = state if is_copy else convert_ref(state, out.dtype)
        stored = stored.view(torch.int16).masked_fill(bad[:, None], CANONICAL_NAN[out.dtype]).view(out.dtype)
        out[:, slot] = stored.where(taken[:, None], out[:, slot])
        _merge(samples[:, slot], statistics_ref(state, out.dtype), owner, taken & owned)


def convert_ref(state: Tensor, dtype: torch.dtype) -> Tensor:
    """`state` in fp16 or bf16: round to nearest even; finite |x| beyond the largest finite value saturates."""
    value = state.float()
    limit = torch.finfo(dtype).max
    saturated = value.isfinite() & (value.abs() > limit)
    bits = value.where(~saturated, value.clamp(-limit, limit)).to(dtype).view(torch.int16)
    return bits.masked_fill(value.isnan(), CANONICAL_NAN[dtype]).view(dtype)


def statistics_ref(state: Tensor, dtype: torch.dtype) -> Tensor:
    """COLUMNS of each row of `state` [R, H] on its way to `dtype`, as int64 [R, 4]; |x| is taken before rounding."""
    value = state.float()
    finite = value.isfinite()
    saturated = finite & (value.abs() > torch.finfo(dtype).max)
    largest = value.abs().where(finite, 0.0).amax(dim=1).view(torch.int32)
    columns = (saturated.sum(1), value.isinf().sum(1), value.isnan().sum(1), largest.long())
    return torch.stack(columns, dim=1)


def _selection(rows: Tensor, num_rows: Tensor | None, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Per row: the token to read (0 where there is none), whether the row is wanted, whether it points outside."""
    taken = torch.ones_like(rows, dtype=torch.bool)
    if num_rows is not None:
        taken = torch.arange(rows.numel(), device=rows.device) < num_rows
    inside = (rows >= 0) & (rows < tokens)
    return rows.where(taken & inside, 0).long(), taken, taken & ~inside


def _add(hidden: Tensor, residual: Tensor, in_fp32: bool) -> Tensor:
    return hidden.float() + residual.float() if in_fp32 else hidden + residual


def _merge(counts: Tensor, found: Tensor, owner: Tensor, counted: Tensor) -> None:
    """Fold `found` [R, 4] of the counted rows into `counts` [S, 4] at their owners."""
    found = found.masked_fill(~counted[:, None], 0)
    counts[:, :3].index_add_(0, owner, found[:, :3])
    counts[:, 3].scatter_reduce_(0, owner, found[:, 3], "amax")
