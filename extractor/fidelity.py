"""How far stored hidden states lie from a reference, and how far they may. Pure functions of arrays.

The reference is computed twice: in the engine's dtype, and one precision higher (float64 for a float32 engine, float32
for a bf16 or fp16 one). The higher one is taken as exact; the distance between the two is what rounding alone does to
this token in this model. That noise differs by a factor of hundreds between tokens - a token on which large
activations cancel amplifies it - so it is measured per row and not assumed:

    noise(row)  =  rms over channels of |same - exact| / (|exact| + median|exact row|)
    allowed     =  ulp(exact)  +  NOISE_FACTOR * noise(row) * (|exact| + median|exact row|)

`ulp` is one step of the stored dtype at that value: both sides are rounded to it once, and two values that straddle a
midpoint end one step apart. The median makes that one massive activation buys no slack for its row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# The largest (error - ulp) / noise seen is 38 among 8.8 million values of SmolLM2-135M in float32, with random tokens,
# vLLM's kernels against Hugging Face's. Wrong rows or layers lie at 10^4 and above. In bf16 the noise itself is near
# 1%, and its realisations differ less.
NOISE_FACTOR = {"float32": 64.0, "bfloat16": 12.0, "float16": 12.0}
HIGHER_PRECISION = {"float32": "float64", "bfloat16": "float32", "float16": "float32"}
_MANTISSA_BITS = {"float16": 10, "bfloat16": 7}
_MIN_EXPONENT = {"float16": -14, "bfloat16": -126}
FP16_LIMIT = 65504.0


def ulp(values: np.ndarray, dtype: str) -> np.ndarray:
    """Distance between neighbours of `dtype` at each value, float64; subnormals have the smallest normal's."""
    wide = values.astype(np.float64)
    _, exponent = np.frexp(wide)
    exponent = np.where(wide == 0, _MIN_EXPONENT[dtype], np.maximum(exponent - 1, _MIN_EXPONENT[dtype]))
    step: np.ndarray = np.ldexp(1.0, exponent - _MANTISSA_BITS[dtype])
    return step


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
    """Errors of one layer over the samples compared so far, against the exact reference. Relative errors are over
    |exact| + the row's median; `beyond_one_ulp` counts against the reference in the engine's dtype."""

    layer_id: int
    elements: int = 0
    beyond_tolerance: int = 0
    beyond_one_ulp: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    worst: Worst | None = None

    def add(
        self, sample_id: str, stored: np.ndarray, same: np.ndarray, exact: np.ndarray, dtype: str, compute: str
    ) -> None:
        """Compare one sample's layer, all arrays [T, H]. `same`: the reference in the engine's dtype `compute`;
        `exact`: one precision higher; `dtype`: the stored one."""
        got = stored.astype(np.float64)
        same, exact = (saturate(array.astype(np.float64), dtype) for array in (same, exact))
        error = _difference(got, exact)
        magnitude = np.where(np.isfinite(exact), np.abs(exact), 0.0)
        scale = magnitude + np.median(magnitude, axis=1, keepdims=True)
        allowed = ulp(magnitude, dtype) + NOISE_FACTOR[compute] * row_noise(same, exact, scale) * scale
        self.elements += error.size
        self.beyond_tolerance += int((error > allowed).sum())
        self.beyond_one_ulp += int((_difference(got, same) > ulp(same, dtype)).sum())
        self.max_abs = max(self.max_abs, float(error.max()))
        self.max_rel = max(self.max_rel, float((error / np.maximum(scale, 1e-30)).max()))
        self._keep_worst(sample_id, got, exact, allowed, error)

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


def row_noise(same: np.ndarray, exact: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """[T, 1]: relative rms distance of the two references per row; 0 where they agree or are not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.abs(same - exact) / scale
    relative[~np.isfinite(relative)] = 0.0
    noise: np.ndarray = np.sqrt((relative**2).mean(axis=1, keepdims=True))
    return noise


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|a - b|; equal non-finite values do not differ, any other non-finite pair differs infinitely."""
    with np.errstate(invalid="ignore"):
        error = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isfinite(error), error, np.inf))
