"""The target model's final norm, for readers that want the last state after it.

Read from config.json and one tensor of the weights; the model itself is never built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from extractor.errors import InputError
from extractor.model_info import ModelInfo

Norm = Callable[[torch.Tensor], torch.Tensor]
# model.norm, language_model.model.norm, model.language_model.norm; not model.layers.0.input_layernorm
_WEIGHT = re.compile(r"(^|\.)(model|language_model)\.norm\.weight$")
# Families whose weight is stored as its difference from 1.
_FROM_ONE = ("gemma", "gemma2", "gemma3", "gemma3_text", "qwen3_next", "qwen3_5", "qwen3_5_text", "recurrent_gemma")


def load_final_norm(model: Path) -> Norm:
    """RMSNorm of the model folder: [..., H] any float dtype -> the same shape and dtype, computed in float32.

    Raises InputError when the folder has no weights or a final norm of another kind.
    """
    ModelInfo.from_dir(model).require_weights()
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    text: dict[str, Any] = {**config, **config.get("text_config", {})}
    if "rms_norm_eps" not in text:
        raise InputError(
            f"{model} has no rms_norm_eps in its config.json, so its final norm is not an RMSNorm; this export can "
            "apply that kind only; export to a format that takes the last state before the norm (speculators)"
        )
    weight = _final_weight(model).float()
    if text.get("model_type") in _FROM_ONE:
        weight = weight + 1
    eps = float(text["rms_norm_eps"])

    def norm(states: torch.Tensor) -> torch.Tensor:
        wide = states.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(states.dtype)

    return norm


def _final_weight(model: Path) -> torch.Tensor:
    for file in sorted(model.glob("*.safetensors")):
        weight = _weight_in(file)
        if weight is not None:
            return weight
    raise InputError(
        f"no safetensors file of {model} has a tensor named like model.norm.weight; pass the folder of the model that "
        "the store was extracted from"
    )


def _weight_in(file: Path) -> torch.Tensor | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as tensors:
            names = [name for name in tensors.keys() if _WEIGHT.search(name)]  # noqa: SIM118 - not a mapping
            return tensors.get_tensor(names[0]) if names else None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} can't be read ({error}); restore it, or pass another folder with --model") from error
