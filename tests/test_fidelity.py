"""The comparison that everything else is judged by must itself reject what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from extractor.fidelity import LayerError, saturate, ulp

RNG = np.random.default_rng(0)


def _error(stored, reference, compute="float32", dtype="float16"):
    layer = LayerError(3)
    layer.add("s", stored.astype(np.float32), reference, reference, dtype, compute)
    return layer


def _stream(rows=7, hidden=96, scale=20.0):
    return (RNG.standard_normal((rows, hidden)) * scale).astype(np.float32)


@pytest.mark.parametrize(
    ("value", "step"), [(1.0, 2**-10), (1.999, 2**-10), (2.0, 2**-9), (-1000.0, 0.5), (0.0, 2**-24), (1e-7, 2**-24)]
)
def test_ulp_of_fp16(value, step):
    assert ulp(np.array([value]), "float16")[0] == step


def test_ulp_agrees_with_numpy_spacing():
    values = np.abs(RNG.standard_normal(1000) * 10.0 ** RNG.integers(-7, 4, 1000)).astype(np.float16)
    np.testing.assert_array_equal(ulp(values, "float16"), np.spacing(values).astype(np.float64))


def test_rounding_passes():
    reference = _stream()
    layer = _error(reference.astype(np.float16), reference)
    assert layer.beyond_tolerance == layer.beyond_one_ulp == 0
    assert layer.elements == reference.size


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: np.zeros_like(x),
        lambda x: np.roll(x, 1, axis=0),
        lambda x: x * 1.2,
        lambda x: x / np.sqrt((x**2).mean(1, keepdims=True)),
        lambda x: -x,
    ],
    ids=["zeros", "row off by one", "scaled", "normed", "sign"],
)
def test_wrong_streams_are_caught(wrong, compute):
    reference = _stream()
    assert _error(wrong(reference), reference, compute).beyond_tolerance > reference.size // 2


def test_one_wrong_element_is_named():
    reference = _stream()
    stored = reference.astype(np.float16).astype(np.float32)
    stored[4, 17] += 1.0
    worst = _error(stored, reference).worst
    assert (worst.sample_id, worst.token, worst.channel) == ("s", 4, 17)
    assert worst.factor > 1
    assert worst.reference == pytest.approx(float(reference[4, 17]))


def test_a_massive_activation_buys_no_slack():
    reference = _stream()
    reference[0, 5] = 22574.0
    stored = reference.astype(np.float16).astype(np.float32)
    stored[0, 6] += 0.5
    assert _error(stored, reference).beyond_tolerance == 1


def test_saturated_values_agree_and_nan_does_not():
    reference = np.array([[70000.0, -1e6, np.inf, np.nan]], np.float32)
    np.testing.assert_array_equal(saturate(reference, "float16"), [[65504.0, -65504.0, np.inf, np.nan]])
    assert _error(saturate(reference, "float16"), reference).beyond_tolerance == 0
    assert _error(np.array([[70000.0, 0, 0, 0]], np.float32), np.full((1, 4), np.nan, np.float32)).beyond_tolerance == 4
