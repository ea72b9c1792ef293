"""`gather_rows` on the CPU with Numba, for installations without a compiler; agrees with gather_rows_ref bit for bit.

The arithmetic mirrors csrc/convert.h: floats are handled as their bits. A row whose values all fit the stored dtype,
nearly every one, takes a loop without branches that LLVM turns into vector code; another row counts each element.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from extractor.jit import numba

_BF16, _FP16, _FP32 = 0, 1, 2
_KINDS = {torch.bfloat16: _BF16, torch.float16: _FP16, torch.float32: _FP32}
_VIEWS = {torch.bfloat16: torch.uint16, torch.float16: torch.uint16, torch.float32: torch.uint32}
_ALONE, _ROUNDED, _SUM = 0, 1, 2
_ABS, _INF, _SIGN = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(0x80000000)
_SCALE = np.float32(2.0**-24)  # the smallest fp16 subnormal
# Adding 0.5 to |x| < 2^-14 leaves the fp16 subnormal, rounded to nearest even, in the lowest bits of the sum.
_HALF, _HALF_BITS = np.float32(0.5), np.uint32(0x3F000000)
_jit = numba.njit(nogil=True, cache=True)


@_jit
def _float(bits):
    return np.uint32(bits).view(np.float32)


@_jit
def _bits(value):
    return np.float32(value).view(np.uint32)


@_jit
def _widen(value, kind):
    """The fp32 bits of a stored pattern."""
    bits = np.uint32(value)
    if kind == _BF16:
        return np.uint32(bits << np.uint32(16))
    if kind == _FP16:
        magnitude = np.uint32(bits & np.uint32(0x7FFF))
        small = _bits(np.float32(magnitude) * _SCALE)
        normal = np.uint32(np.uint32(magnitude << np.uint32(13)) + np.uint32(112 << 23))
        top = np.uint32(_INF | np.uint32(magnitude << np.uint32(13)))
        wide = top if magnitude >= 0x7C00 else normal if magnitude >= 0x0400 else small
        return np.uint32(wide | np.uint32(np.uint32(bits & np.uint32(0x8000)) << np.uint32(16)))
    return bits


@_jit
def _narrow(bits, kind):
    """Round to nearest even; overflow becomes inf, any NaN the canonical one."""
    magnitude = np.uint32(bits & _ABS)
    if kind == _BF16:
        odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
        rounded = np.uint32(np.uint32(bits + np.uint32(np.uint32(0x7FFF) + odd)) >> np.uint32(16))
        return np.uint16(rounded) if magnitude <= _INF else np.uint16(0x7FC0)
    sign = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(0x8000))
    odd = np.uint32(np.uint32(magnitude >> np.uint32(13)) & np.uint32(1))
    shifted = np.uint32(magnitude - np.uint32(112 << 23))
    normal = np.uint32(np.uint32(shifted + np.uint32(np.uint32(0xFFF) + odd)) >> np.uint32(13))
    small = np.uint32(_bits(_float(magnitude) + _HALF) - _HALF_BITS)
    rounded = small if magnitude < 0x38800000 else normal
    rounded = np.uint32(0x7C00) if magnitude >= 0x47800000 else rounded
    return np.uint16(rounded | sign) if magnitude <= _INF else np.uint16(0x7E00)


@_jit
def _state(hidden, residual, source, pair):
    """The fp32 bits of what is to be stored."""
    bits = _widen(hidden, source)
    if pair == _ALONE:
        return bits
    total = _bits(_float(bits) + _float(_widen(residual, source)))
    return _widen(_narrow(total, source), source) if pair == _ROUNDED and source != _FP32 else total


@_jit
def _count(bits, limit, counts):
    magnitude = np.uint32(bits & _ABS)
    if magnitude > _INF:
        counts[2] += 1
    elif magnitude == _INF:
        counts[1] += 1
    else:
        counts[0] += magnitude > limit
        counts[3] = max(counts[3], np.int64(magnitude))


@functools.cache
def _compiled(source: int, stored: int, pair: int) -> Callable[..., None]:
    """The loop for one combination: as constants the kinds leave no branch in it."""
    limit = np.uint32(0x477FE000 if stored == _FP16 else 0x7F7F0000)  # the largest finite value, as fp32 bits
    copies = pair == _ALONE and source == stored

    @numba.njit(nogil=True, cache=True)
    def gather(hidden, residual, rows, owners, slot, out, counts):
        for r in range(rows.size):
            a, b, to, seen = hidden[rows[r]], residual[rows[r]], out[r, slot], counts[owners[r], slot]
            largest = np.uint32(0)
            for i in range(a.size):
                largest = max(largest, np.uint32(_state(a[i], b[i], source, pair) & _ABS))
            if largest <= limit:
                seen[3] = max(seen[3], np.int64(largest))
                for i in range(a.size):
                    to[i] = a[i] if copies else _narrow(_state(a[i], b[i], source, pair), stored)
            else:
                for i in range(a.size):
                    bits = _state(a[i], b[i], source, pair)
                    _count(bits, limit, seen)
                    if limit < np.uint32(bits & _ABS) < _INF:
                        bits = np.uint32(np.uint32(bits & _SIGN) | limit)
                    to[i] = a[i] if copies else _narrow(bits, stored)

    return cast(Callable[..., None], gather)


def _array(tensor: Tensor) -> NDArray[np.generic]:
    return tensor.detach().view(_VIEWS[tensor.dtype]).numpy()


def gather_rows_numba(
    layers: Sequence[Tensor],
    rows: Tensor,
    out: Tensor,
    counts: Tensor,
    owners: Tensor | None = None,
    num_rows: Tensor | None = None,
    residuals: Sequence[Tensor] | None = None,
    sum_in_fp32: bool = False,
) -> None:
    """See gather_rows_ref. Rows and owners must be in range: nothing here checks them."""
    wanted = rows.numel() if num_rows is None else min(max(int(num_rows), 0), rows.numel())
    index = rows[:wanted].numpy()
    owner = np.zeros_like(index) if owners is None else owners[:wanted].numpy()
    samples = counts.view(-1, len(layers), 4).numpy()
    pair = _ALONE if residuals is None else _SUM if sum_in_fp32 else _ROUNDED
    gather = _compiled(_KINDS[layers[0].dtype], _KINDS[out.dtype], pair)
    for slot, (hidden, residual) in enumerate(zip(layers, residuals or layers, strict=True)):
        gather(_array(hidden), _array(residual), index, owner, slot, _array(out), samples)
