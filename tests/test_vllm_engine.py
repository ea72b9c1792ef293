"""The vLLM engine, every value against transformers: what `make test` can afford of the matrices of `make fidelity`."""

from __future__ import annotations

from pathlib import Path

import architectures
import numpy as np
import pydantic
import pytest
from engine_runs import EngineProcess, Reference, compare, make_samples
from safetensors.torch import load_file, save_file
from scheduling import MODEL, SCHEDULING

from extractor.errors import EngineError, UsageError
from extractor.store import Store

# Ranks of a CPU share its memory: a KV cache of 64 blocks each is enough here.
SMALL_CACHE = '{"num_gpu_blocks_override": 64}'


@pytest.fixture(scope="module")
def process():
    process = EngineProcess()
    yield process
    process.restart()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """(model, reference)."""
    model = architectures.save("llama", tmp_path_factory.mktemp("llama"), **MODEL)
    return model, Reference(model)


@pytest.mark.parametrize("name", ["chunked prefill, 7 tokens a step", "preemption (KV cache of 224 tokens)"])
def test_however_it_schedules(process, llama, tmp_path, name):
    case = SCHEDULING[name]
    model, reference = llama
    samples = make_samples(tmp_path / "samples.parquet", case.lengths)
    summary = process.extract(samples=samples, model=model, out=tmp_path / "store", **case.config())
    figures = compare(tmp_path / "store", reference)
    assert (figures.samples, figures.beyond) == (len(case.lengths), 0), figures.worst
    assert summary.findings == 0
    assert bool(summary.restarts) == ("preemption" in name)


@pytest.mark.parametrize("name", ["kimi-k2.5", "nemotron-h"])
def test_other_architectures(process, tmp_path, name):
    """Latent attention with experts inside a model that also sees; attention beside recurrent layers."""
    model = architectures.save(name, tmp_path / "model")
    samples = make_samples(tmp_path / "samples.parquet")
    process.extract(samples=samples, model=model, out=tmp_path / "store", layers="4,1,0", last=True)
    figures = compare(tmp_path / "store", Reference(model))
    assert figures.beyond == 0, figures.worst


def test_a_second_engine_in_one_process_has_its_own_layers(tmp_path):
    """Gemma-2 runs through vLLM's Transformers backend, which notes the layers to return in the model's class: 4 would
    stay before 1."""
    process = EngineProcess()
    model = architectures.save("gemma-2", tmp_path / "model")
    options = {"samples": make_samples(tmp_path / "samples.parquet"), "model": model}
    try:
        process.extract(out=tmp_path / "first", layers="4,2", **options)
        process.extract(out=tmp_path / "second", layers="4,1,0", last=True, **options)
    finally:
        process.restart()
    reference = Reference(model)
    for store in ("first", "second"):
        figures = compare(tmp_path / store, reference)
        assert figures.beyond == 0, f"{store}: {figures.worst}"


def test_requests_aborted_in_the_middle_leave_nothing_behind(process, llama, tmp_path):
    model, reference = llama
    lengths = (1, 2, 100, 128, 3, 50) * 60
    samples = make_samples(tmp_path / "samples.parquet", lengths)
    options = {"samples": samples, "model": model, "out": tmp_path / "store", "layers": "4,1,0", "last": True}
    process.interrupt(token_budget=16, commit_seconds=0.1, **options)
    sealed = len(Store.open(tmp_path / "store"))
    assert 0 < sealed < len(lengths)
    assert compare(tmp_path / "store", reference).beyond == 0
    summary = process.extract(**options)
    assert (summary.already_stored, summary.samples) == (sealed, len(lengths) - sealed)
    figures = compare(tmp_path / "store", reference)
    assert (figures.samples, figures.beyond) == (len(lengths), 0), figures.worst


def test_saturated_values_are_counted_as_the_reference_counts_them(process, tmp_path):
    model = architectures.save("llama", tmp_path / "model", gain=40.0)
    samples = make_samples(tmp_path / "samples.parquet", (1, 40, 64))
    process.extract(samples=samples, model=model, out=tmp_path / "store", layers="1,4", last=True)
    store, reference = Store.open(tmp_path / "store"), Reference(model)
    for sample_id in store:
        values = [same for same, _ in reference.read(store[sample_id].token_ids, store.manifest.layer_ids)]
        counts = [int((np.abs(layer) > 65504).sum()) for layer in values]
        assert store[sample_id].stats["saturated"].tolist() == counts
        assert min(counts) > 0


def test_prefix_caching_is_refused_before_the_engine_starts(process, llama, tmp_path):
    samples = make_samples(tmp_path / "samples.parquet", (3,))
    with pytest.raises(UsageError, match="have no hidden states"):
        process.extract(
            samples=samples,
            model=llama[0],
            out=tmp_path / "store",
            layers="2",
            engine_args='{"enable_prefix_caching": true}',
        )
    assert not (tmp_path / "store").exists()


def test_settings_that_vllm_refuses_are_said_without_pydantics_frame():
    from extractor.engines.vllm import engine

    class Settings(pydantic.BaseModel):
        heads: int

        @pydantic.field_validator("heads")
        @classmethod
        def even(cls, heads):
            raise ValueError(f"{heads} heads are odd")

    with pytest.raises(pydantic.ValidationError) as raised:
        Settings(heads=9)
    assert "validation error for Settings" in str(raised.value)
    assert engine._told(raised.value) == "9 heads are odd"
    assert engine._told(OSError("no file")) == "no file"


def test_unknown_vllm_versions_are_refused(monkeypatch):
    from extractor.engines.vllm import engine

    monkeypatch.setattr(engine.vllm, "__version__", "0.99.1+cpu")
    with pytest.raises(EngineError, match=r"vLLM 0\.99\.1.*checked: 0\.32\.0.*--allow-untested-engine"):
        engine._check_version(allow_untested=False)
    engine._check_version(allow_untested=True)


def overflow_for_token(model: Path, token: int) -> None:
    """Make the states of one token too large for fp16."""
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][token] *= 1e6
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def test_what_stops_one_rank_stops_the_run(tmp_path):
    """vLLM drops a rank's exception from a step, and would compute the whole corpus for nothing."""
    model = architectures.save("llama", tmp_path / "model", **MODEL)
    overflow_for_token(model, 7)
    lengths = (64,) * 400
    samples = make_samples(tmp_path / "samples.parquet", lengths, vocab=7, last_token={"s1": 7})
    options = {"samples": samples, "model": model, "out": tmp_path / "store", "layers": "4,1,0", "last": True}
    process = EngineProcess()
    try:
        with pytest.raises(EngineError, match="^rank 1 stopped: sample 's1' token 63 layer 4 .* beyond fp16's"):
            process.extract(
                tp=2, token_budget=16, overflow="error", commit_seconds=1000.0, engine_args=SMALL_CACHE, **options
            )
    finally:
        process.restart()
    stored = Store.open(tmp_path / "store")
    assert 0 < len(stored) < 100, "the healthy rank seals what is whole, and nothing more is computed"
    assert compare(tmp_path / "store", Reference(model)).beyond == 0


def test_a_killed_rank_stops_the_run_and_eight_ranks_finish_it(llama, tmp_path):
    """Two ranks, one of them killed; then eight into the same store; all values as with one rank."""
    model, reference = llama
    lengths = (64, 1, 128, 30) * 40
    samples = make_samples(tmp_path / "samples.parquet", lengths)
    options = {
        "samples": samples,
        "model": model,
        "out": tmp_path / "store",
        "layers": "4,1,0",
        "last": True,
        "engine_args": SMALL_CACHE,
        "commit_seconds": 0.1,
    }
    process = EngineProcess()
    try:
        with pytest.raises(EngineError, match="a rank may have been killed .*run the same command again to continue"):
            process.kill_a_rank(tp=2, token_budget=16, **options)
        process.restart()
        before = len(Store.open(tmp_path / "store"))
        assert 0 < before < len(lengths)
        summary = process.extract(tp=8, **options)
    finally:
        process.restart()
    assert (summary.already_stored, summary.samples) == (before, len(lengths) - before)
    assert summary.findings == 0
    figures = compare(tmp_path / "store", reference)
    assert (figures.samples, figures.beyond) == (len(lengths), 0), figures.worst
    shards = {path.name for path in (tmp_path / "store").glob("shard-*")}
    assert len(shards) == 10, "each rank of both runs writes a shard of its own"
