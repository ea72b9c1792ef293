"""`gather_rows` as one Triton launch for all layers; agrees with gather_rows_ref bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from extractor.kernels.gather_ref import gather_rows_ref

__all__ = ["gather_rows_ref", "gather_rows_triton"]

# [rows, columns] of a program. On a GPU 8 elements for each of 256 threads, so one 16-byte load and store (at most 52
# registers on sm_80 to sm_100; 16 elements take up to 78). The interpreter pays for each program, not each element.
GPU_TILE, WARPS = (1, 2048), 8
_INTERPRETER_TILE = (8, 4096)
_INF, _ABS = tl.constexpr(0x7F800000), tl.constexpr(0x7FFFFFFF)


@triton.jit
def _widen(x, dtype: tl.constexpr):
    """The fp32 bits of x, exactly. bf16 by a shift: Triton's interpreter converts its subnormals wrongly."""
    if dtype == tl.bfloat16:
        return x.to(tl.int16, bitcast=True).to(tl.int32) << 16
    return x.to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit
def _round_bf16(bits):
    """fp32 bits (no NaN) -> bf16 pattern in the low half, round to nearest even."""
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


@triton.jit
def _add(hidden, residual, dtype: tl.constexpr, IN_FP32: tl.constexpr):
    """fp32 bits of the sum of two fp32 bit patterns, rounded to `dtype` unless IN_FP32."""
    total = hidden.to(tl.float32, bitcast=True) + residual.to(tl.float32, bitcast=True)
    bits = total.to(tl.int32, bitcast=True)
    if IN_FP32 or dtype == tl.float32:
        return bits
    if dtype == tl.float16:
        return total.to(tl.float16).to(tl.float32).to(tl.int32, bitcast=True)
    return tl.where((bits & _ABS) > _INF, bits, _round_bf16(bits) << 16)


@triton.jit
def _narrow(bits, BF16: tl.constexpr):
    """fp32 bits -> 16-bit pattern: saturate, then round to nearest even; any NaN is the canonical one."""
    limit: tl.constexpr = 0x7F7F0000 if BF16 else 0x477FE000
    nan: tl.constexpr = 0x7FC0 if BF16 else 0x7E00
    magnitude = bits & _ABS
    saturated = (magnitude > limit) & (magnitude < _INF)
    clamped = tl.where(saturated, (bits & ~_ABS) | limit, bits)
    if BF16:
        narrow = _round_bf16(clamped).to(tl.int16)
    else:
        narrow = clamped.to(tl.float32, bitcast=True).to(tl.float16).to(tl.int16, bitcast=True)
    return tl.where(magnitude > _INF, nan, narrow).to(tl.int16)


@triton.jit(do_not_specialize=["max_rows", "tokens", "samples"])
def _gather_rows(
    layers, residuals, layer_strides, residual_strides, rows, owners, num_rows, out, counts,
    max_rows, tokens, samples, hidden,
    BF16: tl.constexpr, PAIR: tl.constexpr, IN_FP32: tl.constexpr, OWNED: tl.constexpr, COUNTED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out int16 [max_rows, L, hidden]; program (i, l) takes ROWS rows of layer l. COUNTED: num_rows is used."""
    L: tl.constexpr = len(layers)
    layer = tl.program_id(1)
    source, stride, other, other_stride = layers[0], layer_strides[0], residuals[0], residual_strides[0]
    for i in tl.static_range(1, L):
        if layer == i:
            source, stride, other, other_stride = layers[i], layer_strides[i], residuals[i], residual_strides[i]
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    wanted = r < (tl.minimum(tl.load(num_rows), max_rows) if COUNTED else max_rows)
    row = tl.load(rows + r, wanted, 0).to(tl.int64)
    owner = tl.load(owners + r, wanted, 0).to(tl.int64) if OWNED else row * 0
    owned = wanted & (owner >= 0) & (owner < samples)
    readable = owned & (row >= 0) & (row < tokens)
    bad = (wanted & ~readable)[:, None]
    to = out + (r.to(tl.int64) * L + layer)[:, None] * hidden
    dtype: tl.constexpr = source.dtype.element_ty
    copies: tl.constexpr = not PAIR and dtype == (tl.bfloat16 if BF16 else tl.float16)
    limit: tl.constexpr = 0x7F7F0000 if BF16 else 0x477FE000
    saturated = tl.zeros([ROWS], tl.int32)
    inf = tl.zeros([ROWS], tl.int32)
    nan = tl.zeros([ROWS], tl.int32)
    largest = tl.zeros([ROWS], tl.int32)
    for start in range(0, hidden, COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None, :]
        inside = column < hidden
        x = tl.load(source + row[:, None] * stride + column, inside & readable[:, None], 0.0)
        bits = _widen(x, dtype)
        if PAIR:
            y = tl.load(other + row[:, None] * other_stride + column, inside & readable[:, None], 0.0)
            bits = _add(bits, _widen(y, dtype), dtype, IN_FP32)
        bits = tl.where(bad & inside, 0x7FC00000, bits)
        narrow = _narrow(bits, BF16)
        if copies:
            narrow = tl.where(bad, narrow, x.to(tl.int16, bitcast=True))
        tl.store(to + column, narrow, inside & wanted[:, None])
        magnitude = bits & _ABS
        peak = tl.max(magnitude, 1)
        if tl.max(peak, 0) > limit:  # rare
            saturated += tl.sum(((magnitude > limit) & (magnitude < _INF)).to(tl.int32), 1)
            inf += tl.sum((magnitude == _INF).to(tl.int32), 1)
            nan += tl.sum((magnitude > _INF).to(tl.int32), 1)
            peak = tl.max(tl.where(magnitude < _INF, magnitude, 0), 1)
        largest = tl.maximum(largest, peak)
    at = counts + (owner * L + layer) * 4
    tl.atomic_add(at, saturated.to(tl.int64), owned & (saturated > 0))
    tl.atomic_add(at + 1, inf.to(tl.int64), owned & (inf > 0))
    tl.atomic_add(at + 2, nan.to(tl.int64), owned & (nan > 0))
    tl.atomic_max(at + 3, largest.to(tl.int64), owned & (largest > tl.load(at + 3, owned, 0)))


def gather_rows_triton(
    layers: Sequence[Tensor],
    rows: Tensor,
    out: Tensor,
    counts: Tensor,
    owners: Tensor | None = None,
    num_rows: Tensor | None = None,
    residuals: Sequence[Tensor] | None = None,
    sum_in_fp32: bool = False,
) -> None:
    """See gather_rows_ref. Runs on the current stream, and on the CPU under TRITON_INTERPRET=1."""
    others = layers if residuals is None else residuals
    tile_rows, columns = GPU_TILE if rows.is_cuda else _INTERPRETER_TILE
    grid = (triton.cdiv(rows.numel(), tile_rows), len(layers))
    with torch.cuda.device_of(rows):  # Triton launches on the current device
        _gather_rows[grid](
            tuple(layers), tuple(others), tuple(t.stride(0) for t in layers), tuple(t.stride(0) for t in others),
            rows, rows if owners is None else owners, rows if num_rows is None else num_rows, out.view(torch.int16),
            counts, rows.numel(), layers[0].shape[0], 1 if owners is None else counts.shape[0], layers[0].shape[1],
            BF16=out.dtype == torch.bfloat16, PAIR=residuals is not None, IN_FP32=sum_in_fp32, OWNED=owners is not None,
            COUNTED=num_rows is not None, ROWS=tile_rows, COLUMNS=columns, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
