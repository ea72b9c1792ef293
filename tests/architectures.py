"""Tiny random models of many architectures, made from transformers configs: real code paths at the size of a test.

Every model has weights that matter: matrices are large enough that each layer changes the residual stream by its own
size, and norms and biases are random, so that a model run without one of them gives other values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

VOCAB = 256
MAX_POSITIONS = 128
NUM_LAYERS = 6
_MATRIX_GAIN = 6.0
_VECTOR_NOISE = 0.1

# Sizes that every config understands alike.
_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_HEADS = {"head_dim": 32}
_TWO_HEADS = {"num_attention_heads": 2}  # of 32 channels: the narrowest that vLLM's CPU attention computes
# vLLM's CPU build computes latent attention for this head size alone: 512 + 64.
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
_MAMBA_2 = {
    **_HEADS,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "ssm_state_size": 16,
    "n_groups": 2,
    "chunk_size": 16,
}


@dataclass(frozen=True)
class Architecture:
    """`config`: class name in transformers. `options` over the common sizes. `json_only`: keys of config.json that
    vLLM reads and transformers does not write. `compute`: the engine's dtype. `common`: the sizes, where another set is
    needed. `renamed`: parts of weights' names that transformers does not write as the published checkpoints have them.
    `refused`: why the engine refuses the model; it is measured all the same."""

    name: str
    config: str
    options: Mapping[str, Any] = field(default_factory=dict)
    json_only: Mapping[str, Any] = field(default_factory=dict)
    compute: str = "float32"
    auto_class: str = "AutoModelForCausalLM"
    common: Mapping[str, Any] = field(default_factory=lambda: _COMMON)
    renamed: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""


ARCHITECTURES = {
    a.name: a
    for a in (
        Architecture("llama", "LlamaConfig", _HEADS),
        Architecture("qwen2", "Qwen2Config", _TWO_HEADS),
        Architecture("qwen3", "Qwen3Config", _HEADS),
        Architecture(
            "qwen3-moe",
            "Qwen3MoeConfig",
            {**_HEADS, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
        ),
        Architecture(
            "gpt-oss",
            "GptOssConfig",
            {**_HEADS, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 16},
        ),
        Architecture(
            "deepseek-v2",
            "DeepseekV2Config",
            {**_LATENT, "q_lora_rank": 32, "topk_method": "greedy", "n_group": 1, "topk_group": 1},
        ),
        Architecture(
            "deepseek-v3",
            "DeepseekV3Config",
            {**_LATENT, "q_lora_rank": 32, "n_group": 2, "topk_group": 1},
            {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
        ),
        Architecture(
            "deepseek-v3-yarn",
            "DeepseekV3Config",
            {
                **_LATENT,
                "q_lora_rank": None,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                },
                "n_group": 2,
                "topk_group": 1,
            },
            {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
        ),
        Architecture(
            "kimi-k2.5",
            "Kimi_K25Config",
            {
                "text_config": {
                    **_COMMON,
                    **_LATENT,
                    "model_type": "deepseek_v3",
                    "q_lora_rank": 32,
                    "n_group": 1,
                    "topk_group": 1,
                    "topk_method": "noaux_tc",
                    "scoring_func": "sigmoid",
                },
                "vision_config": {
                    "num_hidden_layers": 2,
                    "hidden_size": 64,
                    "intermediate_size": 64,
                    "num_attention_heads": 2,
                },
                "projection_hidden_size": 64,
                "tie_word_embeddings": False,
            },
            # The published name. transformers writes its own, which vLLM takes for a model it has no code of.
            {"architectures": ["KimiK25ForConditionalGeneration"]},
            auto_class="AutoModelForImageTextToText",
            common={},
            renamed={
                "language_model.model.blocks.": "language_model.model.layers.",
                "model.mm_projector.": "mm_projector.",
            },
        ),
        Architecture("glm", "GlmConfig", _HEADS),
        Architecture("glm-4", "Glm4Config", _HEADS),
        Architecture(
            "glm-4-moe",
            "Glm4MoeConfig",
            {
                **_HEADS,
                "n_routed_experts": 8,
                "num_experts_per_tok": 2,
                "n_shared_experts": 1,
                "moe_intermediate_size": 32,
                "first_k_dense_replace": 1,
                "n_group": 1,
                "topk_group": 1,
            },
        ),
        Architecture("gemma-2", "Gemma2Config", {**_HEADS, "sliding_window": 16, "query_pre_attn_scalar": 32}),
        Architecture("gemma-3", "Gemma3TextConfig", {**_HEADS, "sliding_window": 16, "query_pre_attn_scalar": 32}),
        Architecture("mistral", "MistralConfig", {**_HEADS, "sliding_window": 16}),
        Architecture("mixtral", "MixtralConfig", {**_HEADS, "num_local_experts": 8, "num_experts_per_tok": 2}),
        Architecture("phi-3", "Phi3Config", _TWO_HEADS),
        Architecture(
            "granite",
            "GraniteConfig",
            {**_TWO_HEADS, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.125},
        ),
        Architecture("olmo-2", "Olmo2Config", _TWO_HEADS),
        Architecture(
            "qwen3-next",
            "Qwen3NextConfig",
            {
                # The narrowest heads that vLLM's CPU build has linear attention for, and in bf16 alone. Two experts,
                # both chosen: in bf16 rounding would choose between more, and other experts give other values.
                "head_dim": 64,
                "num_experts": 2,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 32,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 64,
                "linear_value_head_dim": 64,
            },
            compute="bfloat16",
            refused="not verified, see below; figures with `--allow-untested-engine`",
        ),
        Architecture(
            "nemotron-h",
            "NemotronHConfig",
            {**_MAMBA_2, "layers_block_type": ["mamba", "mlp", "attention", "mamba", "mlp", "attention"]},
        ),
        Architecture(
            "nemotron-h with experts",
            "NemotronHConfig",
            {
                **_MAMBA_2,
                "layers_block_type": ["mamba", "moe", "attention", "mamba", "moe", "attention"],
                "n_routed_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "moe_shared_expert_intermediate_size": 64,
            },
        ),
    )
}


def save(name: str, folder: Path, *, seed: int = 0, gain: float = 1.0, **options: Any) -> Path:
    """Write a random model of `name` into `folder`. `options` override the config; `gain` scales all matrices."""
    architecture = ARCHITECTURES[name]
    config_class = getattr(transformers, architecture.config)
    config = config_class(**{**architecture.common, **architecture.options, **options})
    torch.manual_seed(seed)
    model = getattr(transformers, architecture.auto_class).from_config(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(_MATRIX_GAIN * gain)
            else:
                parameter.add_(_VECTOR_NOISE * torch.randn_like(parameter))
    model.save_pretrained(folder)
    _add_to_config(folder / "config.json", architecture.json_only)
    if architecture.renamed:
        _rename_weights(folder / "model.safetensors", architecture.renamed)
    return folder


def _rename_weights(file: Path, renamed: Mapping[str, str]) -> None:
    weights = {}
    for name, weight in load_file(file).items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        weights[name] = weight
    save_file(weights, file, metadata={"format": "pt"})


def _add_to_config(file: Path, values: Mapping[str, Any]) -> None:
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, **values}, indent=1))
