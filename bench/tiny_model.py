"""A random Llama of a few hundred kilobytes, where the model's speed is not the question."""

from __future__ import annotations

from pathlib import Path

VOCAB = 256


def save_tiny_llama(folder: Path) -> Path:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "head_dim": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = LlamaConfig(vocab_size=VOCAB, max_position_embeddings=1024, **sizes, **heads)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder
