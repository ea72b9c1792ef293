"""What 16 of a row's H elements tell: a pass over all of them would cost as much as copying the rows.

n rows, L layers, H hidden size, P = PROBE elements.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint16]

PROBE = 16
MAGNITUDE = np.uint16(0x7FFF)  # all but the sign

# dtype -> shift and mask of the exponent; largest finite value, and so one less than inf
_EXPONENT = {np.dtype(np.float16): (10, 0x1F), np.dtype(ml_dtypes.bfloat16): (7, 0xFF)}
_LARGEST = {np.dtype(np.float16): np.uint16(0x7BFF), np.dtype(ml_dtypes.bfloat16): np.uint16(0x7F7F)}
_ROWS_AT_ONCE = 64

# Odd constants without structure (fractional digits of square roots); a sum of products modulo 2**64 mixes the probe.
_FACTORS = np.array([0x6A09E667F3BCC909, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1], dtype=np.uint64)


def probe_rows(bits: Bits) -> Bits:
    """[n, L, H] -> [n, L, P]: elements evenly spread over the row; zeros behind a row shorter than P."""
    step = max(1, bits.shape[2] // PROBE)
    taken = bits[:, :, ::step][:, :, :PROBE]
    probe = np.zeros((*bits.shape[:2], PROBE), dtype=np.uint16)
    probe[:, :, : taken.shape[2]] = taken
    return probe


def constant_rows(bits: Bits, probe: Bits) -> NDArray[np.bool_]:
    """[n, L]: whether all H elements of a row are one value. Only rows whose probe says so are read; -0 counts as 0."""
    spread = min(PROBE, bits.shape[2])
    candidates = _all_equal(probe[:, :, :spread])
    for row, layer in np.argwhere(candidates):
        candidates[row, layer] = bool(_all_equal(bits[row, layer]))
    return candidates


def sum_exponents(probe: Bits, dtype: np.dtype) -> NDArray[np.int64]:
    """[n, L, P] -> [L]: sum of log2|x| (up to a constant) of the probe: few huge elements hardly move it."""
    shift, mask = _EXPONENT[dtype]
    exponents: Bits = (probe >> np.uint16(shift)) & np.uint16(mask)
    sums: NDArray[np.int64] = exponents.sum(axis=(0, 2), dtype=np.int64)
    return sums


def fingerprints(probe: Bits) -> NDArray[np.uint64]:
    """[n, L, P] -> [n, L]: equal for equal probes; 0 for none."""
    mixed: NDArray[np.uint64] = (probe.view(np.uint64) * _FACTORS).sum(axis=2, dtype=np.uint64)
    mixed ^= mixed >> np.uint64(31)
    mixed *= _FACTORS[0]
    mixed ^= mixed >> np.uint64(29)
    return np.maximum(mixed, np.uint64(1), out=mixed)


def first_element(bits: Bits, kind: str, dtype: np.dtype) -> tuple[int, int]:
    """Row and channel of the first element of [n, H] that is "saturated", "inf" or "nan"; (0, -1) if there is none."""
    for start in range(0, len(bits), _ROWS_AT_ONCE):
        found = _is(kind, bits[start : start + _ROWS_AT_ONCE] & MAGNITUDE, _LARGEST[dtype])
        if found.any():
            row, channel = divmod(int(found.argmax()), bits.shape[1])
            return start + row, channel
    return 0, -1


def _is(kind: str, magnitude: Bits, largest: np.uint16) -> NDArray[np.bool_]:
    if kind == "saturated":
        return np.equal(magnitude, largest)
    inf = largest + np.uint16(1)
    return np.equal(magnitude, inf) if kind == "inf" else np.greater(magnitude, inf)


def _all_equal(bits: Bits) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (bits == bits[..., :1]).all(axis=-1) | ((bits & MAGNITUDE) == 0).all(axis=-1)
    return same
