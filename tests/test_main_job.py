"""The main job through real vLLM on a tiny model, every value against transformers, and what must be caught."""

from __future__ import annotations

import dataclasses
import shutil

import numba  # noqa: F401 - loaded before vLLM, which fails on it unless it is told better
import numpy as np
import pytest
import torch
from jobs import config, store_bits, write_random_samples
from models import save_tiny_llama

from extractor.config import Config
from extractor.engines.transformers import ResidualReader
from extractor.errors import FingerprintError
from extractor.extraction import extract
from extractor.samples import SamplesFile
from extractor.store import Store
from extractor.verify import verify_reference

CONTEXT = 128
# many short ones in one step (rows of one request must not end in another's), one token, exactly the model's context,
# and lengths around the budget of 96 so that samples are cut into odd chunks
LENGTHS = [1, 1, 2, 3, 5, 7, 1, 4, 6, 2, 3, 9, 1, 8, CONTEXT, 95, 96, 97, CONTEXT, 127, 1, 64, 33]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("llama"), max_positions=CONTEXT)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    return write_random_samples(tmp_path_factory.mktemp("samples") / "samples.parquet", LENGTHS)


@pytest.fixture(scope="module")
def vllm_store(model, samples, tmp_path_factory):
    out = tmp_path_factory.mktemp("vllm") / "store"
    summary = extract(config(model, samples, out, engine="vllm", token_budget=96))
    assert (summary.samples, summary.tokens) == (len(LENGTHS), sum(LENGTHS))
    return out


@pytest.fixture(scope="module")
def reference_store(model, samples, tmp_path_factory):
    out = tmp_path_factory.mktemp("transformers") / "store"
    extract(config(model, samples, out))
    return out


@pytest.mark.parametrize("engine", ["vllm_store", "reference_store"])
def test_every_value_agrees_with_the_reference(engine, model, request):
    store = Store.open(request.getfixturevalue(engine))
    report = verify_reference(store, model, len(LENGTHS))
    assert len(report.samples) == len(LENGTHS)
    for layer in report.layers:
        assert layer.elements == sum(LENGTHS) * 64
        assert layer.beyond_tolerance == 0, layer
        assert layer.worst.factor < 0.6  # nothing but the rounding to fp16
    assert report.ok


def test_ids_masks_and_order(vllm_store, samples):
    store = Store.open(vllm_store)
    assert store.manifest.layer_ids == (4, 1, 0, 6)
    assert set(store) == set(SamplesFile(samples).sample_ids)
    for sample in SamplesFile(samples):
        stored = store[sample.sample_id]
        np.testing.assert_array_equal(stored.token_ids, sample.token_ids)
        np.testing.assert_array_equal(stored.loss_mask, sample.loss_mask)
        assert stored.hidden_states.shape == (sample.token_ids.size, 4, 64)


def test_statistics_are_those_of_the_values(vllm_store):
    store = Store.open(vllm_store)
    for sample in store.values():
        peaks = np.abs(np.asarray(sample.hidden_states, np.float32)).max(axis=(0, 2))
        np.testing.assert_allclose(sample.stats["max_abs"], peaks, rtol=2**-11)
        assert not sample.stats["saturated"].any()


def test_both_engines_store_the_same(vllm_store, reference_store):
    a, b = Store.open(vllm_store), Store.open(reference_store)
    for sample_id in a:
        x, y = (np.asarray(store[sample_id].hidden_states, np.float32) for store in (a, b))
        scale = np.abs(y) + np.median(np.abs(y), axis=2, keepdims=True)
        assert (np.abs(x - y) / scale).max() < 2**-9


@pytest.mark.parametrize(
    "change",
    [{"layers": "1,4,0"}, {"last": False}, {"dtype": "bfloat16"}, {"overflow": "error"}, {"codec": "shuffle-zstd"}],
)
def test_another_configuration_is_refused(reference_store, model, samples, change):
    before = store_bits(reference_store)
    with pytest.raises(FingerprintError) as refused:
        extract(config(model, samples, reference_store, **change))
    (name,) = change
    assert {"layers": "layer_ids", "last": "layer_ids"}.get(name, name) in str(refused.value)
    assert store_bits(reference_store) == before


def _off_by_one(reader, token_ids, layer_ids):
    return READ(reader, token_ids, [k + 1 if k < 6 else k for k in layer_ids])


def _without_residual(reader, token_ids, layer_ids):
    streams = READ(reader, token_ids, [max(k - 1, 0) for k in layer_ids])
    return [after - before for after, before in zip(READ(reader, token_ids, layer_ids), streams, strict=True)]


def _last_normed(reader, token_ids, layer_ids):
    return [
        reader._model.norm(x) if k == 6 else x
        for k, x in zip(layer_ids, READ(reader, token_ids, layer_ids), strict=True)
    ]


def _last_off_by_one(reader, token_ids, layer_ids):
    return READ(reader, token_ids, [5 if k == 6 else k for k in layer_ids])


def _sorted_order(reader, token_ids, layer_ids):
    return READ(reader, token_ids, sorted(layer_ids))


def _rows_shifted(reader, token_ids, layer_ids):
    return [x.roll(1, 0) for x in READ(reader, token_ids, layer_ids)]


def _of_another_sample(reader, token_ids, layer_ids):
    return READ(reader, token_ids[::-1].copy(), layer_ids)


def _one_row_stale(reader, token_ids, layer_ids):
    return [torch.cat([x[:-1], x[:1]]) for x in READ(reader, token_ids, layer_ids)]


READ = ResidualReader.read
FAULTS = [
    _off_by_one,
    _without_residual,
    _last_normed,
    _last_off_by_one,
    _sorted_order,
    _rows_shifted,
    _of_another_sample,
    _one_row_stale,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_rejects(fault, model, tmp_path, monkeypatch):
    """Negative controls: a store made with each fault must not pass."""
    samples = write_random_samples(tmp_path / "samples.parquet", [17, 40])
    with monkeypatch.context() as patched:
        patched.setattr(ResidualReader, "read", fault)
        extract(config(model, samples, tmp_path / "store"))
    report = verify_reference(Store.open(tmp_path / "store"), model, 2)
    assert not report.ok
    worst = max((layer.worst for layer in report.layers), key=lambda w: w.factor)
    assert worst.factor > 100
    assert worst.sample_id in ("s-0", "s-1")


def test_bfloat16_store_keeps_the_engines_bits(model, tmp_path):
    samples = write_random_samples(tmp_path / "samples.parquet", [9])
    options = config(model, samples, tmp_path / "store", dtype="bfloat16", compute_dtype="bfloat16")
    extract(options)
    stored = Store.open(options.out)["s-0"]
    streams = ResidualReader(model, "bfloat16").read(stored.token_ids, (4, 1, 0, 6))
    for slot, stream in enumerate(streams):
        np.testing.assert_array_equal(
            np.ascontiguousarray(stored.hidden_states[:, slot]).view(np.uint16), stream.view(torch.uint16).numpy()
        )
    assert verify_reference(Store.open(options.out), model, 1).ok


def test_what_a_failed_run_left_goes_with_the_next(model, samples, tmp_path):
    options = {
        "samples": samples,
        "model": model,
        "out": tmp_path / "s",
        "engine": "transformers",
        "canary": 0,
        "layers": "1,3",
    }
    extract(Config(**options))
    (shard,) = (tmp_path / "s").glob("shard-*")
    shutil.rmtree(shard)
    (tmp_path / "s" / "shards.txt").write_text("")
    runs = tmp_path / "s" / "runs"
    (runs / "r.canary" / "runs").mkdir(parents=True)
    (runs / "r.rank-3.error").write_text("no room")
    extract(Config(**options))
    assert {path.suffix for path in runs.iterdir()} == {".json"}


def test_options_cover_the_command_line():
    """The command is generated from the dataclass: what outsiders see is pinned here."""
    from extractor.config import Config

    assert {f.name for f in dataclasses.fields(Config)} >= {
        "samples", "model", "out", "engine", "tp", "layers", "last", "dtype", "overflow", "codec", "token_budget"
    }  # fmt: skip
