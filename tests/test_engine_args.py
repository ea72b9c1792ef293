"""`--engine-args`: what reaches vLLM, what is refused and why, and what a store's fingerprint keeps."""

from __future__ import annotations

import pytest
import torch

from extractor.engines.compute_dtype import compute_dtype
from extractor.engines.engine_args import arguments_that_change_values, parse_engine_args, require_known
from extractor.errors import UsageError


def test_allowed_arguments_pass():
    assert parse_engine_args('{"num_gpu_blocks_override": 9, "pipeline_parallel_size": 1}') == {
        "num_gpu_blocks_override": 9,
        "pipeline_parallel_size": 1,
    }
    assert parse_engine_args("{}") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "is a JSON list"),
        ('{"enable_prefix_caching": true}', "enable_prefix_caching to True.*have no hidden states"),
        ('{"pipeline_parallel_size": 2}', "layers of other stages"),
        ('{"decode_context_parallel_size": 2}', "not verified"),
        ('{"prefill_context_parallel_size": 2}', "permuted order"),
        ('{"data_parallel_size": 2}', "one extract for each replica"),
        ('{"speculative_config": {}}', "draft tokens"),
        ('{"tensor_parallel_size": 2}', "use --tp"),
        ('{"worker_cls": "x"}', "sets it itself"),
    ],
)
def test_refused_arguments_say_why(text, message):
    with pytest.raises(UsageError, match=message):
        parse_engine_args(text)


def test_unknown_arguments_come_with_a_guess():
    with pytest.raises(UsageError, match="'num_gpu_block'.*close to it: num_gpu_blocks"):
        require_known(["num_gpu_block"], ["num_gpu_blocks", "seed"])


def test_the_fingerprint_keeps_what_changes_values():
    assert arguments_that_change_values({"quantization": "fp8", "block_size": 16}) == {"quantization": "fp8"}


@pytest.mark.parametrize(
    ("choice", "gpu", "expected"),
    [
        ("auto", True, "bfloat16"),
        ("auto", False, "float32"),
        ("float16", True, "float16"),
        ("bfloat16", False, "bfloat16"),
    ],
)
def test_the_compute_dtype(monkeypatch, choice, gpu, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert compute_dtype(choice, "bfloat16") == expected


def test_a_float32_checkpoint_is_computed_in_float32_on_a_gpu(monkeypatch):
    """vLLM's own `auto` would take bf16, while the manifest says float32."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert compute_dtype("auto", "float32") == "float32"
