"""The comparison that everything else is judged by must itself reject what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from extractor.fidelity import LayerError, row_noise, saturate, ulp

RNG = np.random.default_rng(0)
NOISE = {"float32": 1e-6, "bfloat16": 5e-3}


def _error(stored, exact, compute="float32", dtype="float16"):
    same = exact * (1 + NOISE[compute] * RNG.standard_normal(exact.shape))
    layer = LayerError(3)
    layer.add("s", stored, same, exact, dtype, compute)
    return layer


def _stream(rows=7, hidden=96, scale=20.0):
    return RNG.standard_normal((rows, hidden)) * scale


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
    assert layer.beyond_tolerance == 0
    assert layer.beyond_one_ulp < 0.01 * layer.elements
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
    stored = reference.astype(np.float16).astype(np.float64)
    stored[4, 17] += 1.0
    worst = _error(stored, reference).worst
    assert (worst.sample_id, worst.token, worst.channel) == ("s", 4, 17)
    assert worst.factor > 1
    assert worst.reference == pytest.approx(float(reference[4, 17]))


def test_noise_is_measured_per_row():
    exact = _stream()
    same = exact.copy()
    same[2] *= 1 + 1e-4
    noise = row_noise(same, exact, np.abs(exact) + np.median(np.abs(exact), axis=1, keepdims=True))
    assert noise.shape == (7, 1)
    assert (noise[[0, 1, 3, 4, 5, 6]] == 0).all()
    assert 2e-5 < noise[2, 0] < 1e-4


def test_a_noisy_row_excuses_only_itself():
    exact = _stream()
    same = exact.copy()
    same[2] *= 1 + 1e-4
    for row, allowed in ((2, True), (3, False)):
        stored = exact.astype(np.float16).astype(np.float64)
        stored[row] *= 1 + 3e-3
        layer = LayerError(3)
        layer.add("s", stored, same, exact, "float16", "float32")
        assert (layer.beyond_tolerance == 0) is allowed


def test_a_massive_activation_buys_no_slack():
    reference = _stream()
    reference[0, 5] = 22574.0
    stored = reference.astype(np.float16).astype(np.float64)
    stored[0, 6] += 0.5
    assert _error(stored, reference).beyond_tolerance == 1


def test_saturated_values_agree_and_nan_does_not():
    reference = np.array([[70000.0, -1e6, np.inf, np.nan]])
    np.testing.assert_array_equal(saturate(reference, "float16"), [[65504.0, -65504.0, np.inf, np.nan]])
    assert _error(saturate(reference, "float16"), reference).beyond_tolerance == 0
    assert _error(np.array([[70000.0, 0, 0, 0]]), np.full((1, 4), np.nan)).beyond_tolerance == 4
