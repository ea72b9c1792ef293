"""Models that mix attention with recurrent layers: which ones vLLM may run, and what the others are told."""

from __future__ import annotations

import json
import math

import architectures
import pytest
from engine_runs import EngineProcess

from extractor.config import Config
from extractor.errors import EngineError


@pytest.fixture(scope="module")
def process():
    process = EngineProcess()
    yield process
    process.restart()


def _resolve(options):
    """What vLLM is set up with: the model's class and whether it is a hybrid. No weights are loaded."""
    from extractor.engines.load import engine_class

    engine_class("vllm")  # the environment first
    from extractor.engines.vllm.environment import prepare_cpu
    from extractor.engines.vllm.settings import engine_config

    prepare_cpu(tp=1)
    model = engine_config(Config(**options), longest=64).model_config
    return model.architecture, model.is_hybrid


def _options(tmp_path, name, **more):
    architecture = architectures.ARCHITECTURES[name]
    model = architectures.save(name, tmp_path / name)
    return {
        "samples": tmp_path / "samples.parquet",
        "out": tmp_path / "store",
        "model": model,
        "layers": "2",
        "compute_dtype": architecture.compute,
        **more,
    }


def test_a_verified_hybrid_runs(process, tmp_path):
    assert process.call(_resolve, _options(tmp_path, "nemotron-h")) == ("NemotronHForCausalLM", True)


def test_other_hybrids_are_refused_unless_insisted_on(process, tmp_path):
    options = _options(tmp_path, "qwen3-next")
    with pytest.raises(
        EngineError, match=r"Qwen3NextForCausalLM mixes .* verified: NemotronH.*--allow-untested-engine"
    ):
        process.call(_resolve, options)
    allowed = {**options, "allow_untested_engine": True}
    assert process.call(_resolve, allowed) == ("Qwen3NextForCausalLM", True)


def test_models_without_recurrent_layers_are_not_asked(process, tmp_path):
    assert process.call(_resolve, _options(tmp_path, "llama")) == ("LlamaForCausalLM", False)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"time_step_limit": [0.001, math.inf]}, r"time_step_limit \[0\.001, inf\], but vLLM computes with \[0, inf\]"),
        ({"time_step_limit": [0.0, 0.1]}, r"time_step_limit \[0\.0, 0\.1\], but vLLM computes with \[0, inf\]"),
        ({"layers_block_type": ["mamba", "moe", "attention"]}, "its experts were not verified"),
        ({"layers_block_type": None, "hybrid_override_pattern": "ME*"}, "its experts were not verified"),
    ],
)
def test_what_was_not_verified_of_a_verified_hybrid_is_refused(process, tmp_path, changed, said):
    options = _options(tmp_path, "nemotron-h")
    file = options["model"] / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    with pytest.raises(EngineError, match=said):
        process.call(_resolve, options)
    assert process.call(_resolve, {**options, "allow_untested_engine": True}) == ("NemotronHForCausalLM", True)
