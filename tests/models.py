"""Tiny random models, made from transformers configs: real code paths at the size of a test."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

VOCAB = 256


def save_tiny_llama(
    folder: Path, *, num_layers: int = 6, hidden_size: int = 64, heads: int = 4, max_positions: int = 128, seed: int = 0
) -> Path:
    """A random Llama with `heads` attention and KV heads, so that it can be split over that many ranks."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=32,
        max_position_embeddings=max_positions,
        rms_norm_eps=1e-5,
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                # The default init is so small that layers hardly change the residual stream: wrong layers would pass.
                parameter.mul_(6.0)
    model.save_pretrained(folder)
    return folder


def save_final_norm(folder: Path) -> Path:
    """A model folder with a final norm and no more: what the exports read of one. 6 layers, hidden size 16."""
    weight = torch.linspace(0.5, 2, 16)
    save_file(
        {"model.norm.weight": weight, "model.layers.0.input_layernorm.weight": weight * 9}, folder / "m.safetensors"
    )
    config = {"model_type": "llama", "num_hidden_layers": 6, "hidden_size": 16, "vocab_size": 99, "rms_norm_eps": 1e-5}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
