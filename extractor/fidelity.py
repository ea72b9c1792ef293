"""How far stored hidden states lie from a reference, and how far they may. Pure functions of arrays.

Tolerance of one element, reference value r in a row x of H values, engine computing with unit roundoff u:

    |stored - r|  <=  ulp(r)  +  C * u * (|r| + median|x|)

`ulp(r)` is one step of the stored dtype at r: both sides are rounded to it once, and two values that straddle a
midpoint end one step apart. The second term is the engine's own noise: sums in another order differ by a few u
relative to the terms, whose size is that of the row (its median, so that one massive activation does not buy slack
for its neighbours).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# C by compute dtype, with what was seen. A wrong layer, a missing residual add or a normed last layer differ by more
# than 0.1 (|r| + median) on most elements.
NOISE_FACTOR = {
    "float32": 256.0,
    "bfloat16": 16.0,
    "float16": 16.0,
}
UNIT_ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
_MANTISSA_BITS = {"float16": 10, "bfloat16": 7}
_MIN_EXPONENT = {"float16": -14, "bfloat16": -126}
FP16_LIMIT = 65504.0


def ulp(values: np.ndarray, dtype: str) -> np.ndarray:
    """Distance between neighbours of `dtype` at each value, float64; subnormals have the smallest normal's."""
    _, exponent = np.frexp(values.astype(np.float64))
    exponent = np.maximum(exponent - 1, _MIN_EXPONENT[dtype])
    return np.ldexp(1.0, exponent - _MANTISSA_BITS[dtype])


def saturate(values: np.ndarray, dtype: str) -> np.ndarray:
    """What the store does to values that fp16 can't hold; NaN stays NaN and inf stays inf."""
    if dtype != "float16":
        return values
    finite = np.isfinite(values)
    return np.where(finite, np.clip(values, -FP16_LIMIT, FP16_LIMIT), values)


@dataclass(slots=True)
class Worst:
    """The element that exceeds its tolerance by the largest factor (or comes closest)."""

    sample_id: str = ""
    token: int = 0
    channel: int = 0
    stored: float = 0.0
    reference: float = 0.0
    tolerance: float = 0.0
    factor: float = -1.0


@dataclass(slots=True)
class LayerError:
    """Errors of one layer over the samples compared so far. Relative errors are over |r| + the row's median |r|."""

    layer_id: int
    elements: int = 0
    beyond_tolerance: int = 0
    beyond_one_ulp: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    worst: Worst | None = None

    def add(
        self,
        sample_id: str,
        stored: np.ndarray,
        reference: np.ndarray,
        same_dtype: np.ndarray,
        dtype: str,
        compute: str,
    ) -> None:
        """Compare one sample's layer. `stored`, `reference` (computed in float32) and `same_dtype` (computed in the
        engine's dtype) are [T, H] float32."""
        reference = saturate(reference.astype(np.float64), dtype)
        same = saturate(same_dtype.astype(np.float64), dtype)
        got = stored.astype(np.float64)
        error = _difference(got, reference)
        scale = np.abs(reference) + np.median(np.abs(reference), axis=1, keepdims=True)
        allowed = ulp(reference, dtype) + NOISE_FACTOR[compute] * UNIT_ROUNDOFF[compute] * scale
        self.elements += error.size
        self.beyond_tolerance += int((error > allowed).sum())
        self.beyond_one_ulp += int((_difference(got, same) > ulp(same, dtype)).sum())
        self.max_abs = max(self.max_abs, float(error.max()))
        self.max_rel = max(self.max_rel, float((error / np.maximum(scale, 1e-30)).max()))
        self._keep_worst(sample_id, got, reference, allowed, error)

    def _keep_worst(
        self, sample_id: str, stored: np.ndarray, reference: np.ndarray, allowed: np.ndarray, error: np.ndarray
    ) -> None:
        factor = error / allowed
        token, channel = (int(i) for i in np.unravel_index(int(np.argmax(factor)), factor.shape))
        if self.worst is None or factor[token, channel] > self.worst.factor:
            self.worst = Worst(
                sample_id,
                token,
                channel,
                float(stored[token, channel]),
                float(reference[token, channel]),
                float(allowed[token, channel]),
                float(factor[token, channel]),
            )


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|a - b|; equal non-finite values do not differ, any other non-finite pair differs infinitely."""
    with np.errstate(invalid="ignore"):
        error = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isfinite(error), error, np.inf))
