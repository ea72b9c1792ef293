"""How vLLM is set up for extraction."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import get_model_architecture
from vllm.platforms import current_platform

from extractor.config import Config
from extractor.engines.compute_dtype import compute_dtype
from extractor.engines.engine_args import parse_engine_args, require_known
from extractor.errors import EngineError
from extractor.layers import resolve_layers
from extractor.model_info import ModelInfo


def engine_config(config: Config, longest: int) -> Any:
    """A VllmConfig for samples of at most `longest` tokens. Raises UsageError for engine arguments it refuses."""
    extra = parse_engine_args(config.engine_args)
    require_known(extra, (item.name for item in fields(EngineArgs)))
    args = EngineArgs(**_with_executor({**_arguments(config, longest), **extra}))
    created = args.create_engine_config()
    if created.model_config.is_hybrid and not config.allow_untested_engine:
        _require_verified(created.model_config)
    if not _has_aux_support(created):
        args.model_impl = "transformers"
        created = args.create_engine_config()
    return created


def _with_executor(arguments: dict[str, Any]) -> dict[str, Any]:
    """Several ranks are processes of ours, never Ray's: inside a replica's placement group vLLM would otherwise ask Ray
    for the room that the replica itself occupies, and wait for ever."""
    ranks = arguments["tensor_parallel_size"] * arguments.get("pipeline_parallel_size", 1)
    return {"distributed_executor_backend": "mp", **arguments} if ranks > 1 else arguments


def _arguments(config: Config, longest: int) -> dict[str, Any]:
    info = ModelInfo.from_dir(config.model)
    on_gpu = not current_platform.is_cpu()
    budget = config.token_budget if config.chunked_prefill else max(config.token_budget, longest + 1)
    return {
        "model": str(config.model),
        "skip_tokenizer_init": True,
        "trust_remote_code": config.trust_remote_code,
        "dtype": compute_dtype(config.compute_dtype, info.dtype),
        "tensor_parallel_size": config.tp,
        "max_model_len": longest + 1,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(config.max_in_flight, config.token_budget),  # vLLM allows no more
        "enable_chunked_prefill": config.chunked_prefill,
        "enable_prefix_caching": False,
        "gpu_memory_utilization": config.gpu_memory,
        "enforce_eager": config.compile == "off" or (config.compile == "auto" and not on_gpu),
        "compilation_config": _GPU_COMPILATION if on_gpu else _CPU_COMPILATION,
        "worker_cls": "extractor.engines.vllm.worker.ExtractorWorker",
        "additional_config": {"extractor_layer_ids": list(resolve_layers(config.layers, info.num_layers, config.last))},
        "disable_log_stats": True,
        "language_model_only": True,  # samples are text: no image tower in memory, no image processor needed
        "seed": 0,
    }


# The CPU kernel for rotary embeddings in vLLM 0.32 leaves queries of three dimensions as they are: latent attention
# (DeepSeek, Kimi) then runs without positions and says nothing. The PyTorch form of the operation in vLLM is right.
_CPU_COMPILATION = {"custom_ops": ["-rotary_embedding"]}
# Steps are prefills of thousands of tokens, larger than any graph that vLLM records, and nothing is decoded: recording
# costs start-up time and memory, and gains nothing.
_GPU_COMPILATION = {"cudagraph_mode": "NONE"}


# Models that mix attention with recurrent layers, each a kernel of its own: those whose states were compared with the
# reference value by value and agree (docs/fidelity.md).
_VERIFIED_HYBRIDS = ("NemotronHForCausalLM",)


def _require_verified(model: Any) -> None:
    """Raise EngineError unless hybrid `model` (a vLLM ModelConfig) is known to come out right."""
    fault = _not_verified(model.architecture, model.hf_text_config)
    if fault:
        raise EngineError(
            f"{model.architecture} mixes attention with recurrent layers, and {fault} (docs/fidelity.md); use --engine "
            "transformers, or pass --allow-untested-engine and verify the store with --reference"
        )


def _not_verified(architecture: str, text: Any) -> str:
    if architecture not in _VERIFIED_HYBRIDS:
        return f"its states from this vLLM were not verified; verified: {', '.join(_VERIFIED_HYBRIDS)}"
    if "moe" in (getattr(text, "layers_block_type", None) or ()):
        return "its experts were not verified: vLLM's CPU build can't run them"
    limit = [float(bound) for bound in getattr(text, "time_step_limit", None) or (0.0, math.inf)]
    if limit != [0.0, math.inf]:  # vLLM's Mamba 2 layers have these bounds in their code
        return f"has time_step_limit {limit}, but vLLM computes with [0, inf] whatever the config says"
    return ""


def _has_aux_support(created: Any) -> bool:
    model_class, _ = get_model_architecture(created.model_config)
    return bool(getattr(model_class, "supports_eagle3", False))
