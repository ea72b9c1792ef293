"""Models whose residual stream passes fp16's 65,504: counted exactly, kept in bf16, or refused with the place."""

from __future__ import annotations

import re

import architectures
import ml_dtypes
import numpy as np
import pytest
from engine_runs import Reference, make_samples

from extractor import Config, extract
from extractor.errors import EngineError
from extractor.samples import SamplesFile
from extractor.store import Store

LAYERS = (4, 1, 0, 6)
LIMIT = 65504.0


@pytest.fixture(scope="module")
def huge(tmp_path_factory):
    """(model, samples, reference): weights scaled until a share of each layer but the first overflows."""
    folder = tmp_path_factory.mktemp("huge")
    model = architectures.save("llama", folder / "model", gain=40.0)
    return model, make_samples(folder / "samples.parquet", (1, 40, 64)), Reference(model)


def _extract(huge, out, **options):
    model, samples, _ = huge
    return extract(
        Config(
            samples=samples, model=model, out=out, engine="transformers", layers="4,1,0", last=True, canary=0, **options
        )
    )


def _values(huge, token_ids):
    """What the engine computed: float64 [T, L, H]."""
    return np.stack([same for same, _ in huge[2].read(token_ids, LAYERS)], axis=1)


def test_saturated_values_are_counted_exactly(huge, tmp_path):
    summary = _extract(huge, tmp_path / "store")
    store = Store.open(tmp_path / "store")
    total = 0
    for sample_id in store:
        values = _values(huge, store[sample_id].token_ids)
        beyond = np.abs(values) > LIMIT
        assert store[sample_id].stats["saturated"].tolist() == beyond.sum(axis=(0, 2)).tolist()
        np.testing.assert_allclose(store[sample_id].stats["max_abs"], np.abs(values).max(axis=(0, 2)))
        rows = np.asarray(store[sample_id].hidden_states).astype(np.float64)
        np.testing.assert_array_equal(rows[beyond], np.sign(values[beyond]) * LIMIT)
        assert np.isfinite(rows).all()
        total += int(beyond.sum())
    assert summary.saturated == total > 1000
    assert summary.exit_code == 3


def test_layer_0_does_not_overflow_and_the_others_only_in_part(huge, tmp_path):
    """Else the counts above would be trivial."""
    _extract(huge, tmp_path / "store")
    store = Store.open(tmp_path / "store")
    shares = sum(store[i].stats["saturated"] for i in store) / sum(store[i].token_ids.size for i in store) / 64
    assert shares[2] == 0
    assert all(0.01 < share < 0.99 for share in np.delete(shares, 2))


def test_bfloat16_keeps_the_bits(huge, tmp_path):
    summary = _extract(huge, tmp_path / "store", dtype="bfloat16", overflow="error")
    assert (summary.saturated, summary.exit_code) == (0, 0)
    store = Store.open(tmp_path / "store")
    for sample_id in store:
        want = _values(huge, store[sample_id].token_ids).astype(np.float32).astype(ml_dtypes.bfloat16)
        got = np.asarray(store[sample_id].hidden_states)
        np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


def test_overflow_error_names_the_place(huge, tmp_path):
    with pytest.raises(EngineError, match=r"'s0' token 0 layer \d channel \d+ .* beyond fp16's 65,504") as caught:
        _extract(huge, tmp_path / "store", overflow="error")
    store = Store.open(tmp_path / "store")
    assert len(store) == 0
    _, _, reference = huge
    token_ids = next(iter(SamplesFile(huge[1]))).token_ids
    values = dict(zip(LAYERS, (same for same, _ in reference.read(token_ids, LAYERS)), strict=True))
    said = str(caught.value)
    layer, channel, count = (int(n) for n in re.search(r"layer (\d) channel (\d+) .* of (\d+) values", said).groups())
    beyond = np.abs(values[layer][0]) > LIMIT
    assert (channel, count) == (np.flatnonzero(beyond)[0], beyond.sum())
    peak = float(re.search(r"largest \|x\| of them is (\S+);", said)[1])
    assert peak == pytest.approx(np.abs(values[layer][0]).max(), rel=1e-5)
