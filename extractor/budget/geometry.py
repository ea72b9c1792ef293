"""What one token weighs: the kept layers, the hidden size, two bytes a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from extractor.errors import UsageError
from extractor.layers import resolve_layers
from extractor.manifest import Manifest
from extractor.model_info import ModelInfo

BYTES_PER_VALUE = 2  # float16 and bfloat16 alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes of the model and the layer ids kept, in the order stored."""

    hidden_size: int
    num_layers: int
    layer_ids: tuple[int, ...]

    @property
    def bytes_per_token(self) -> int:
        return len(self.layer_ids) * self.hidden_size * BYTES_PER_VALUE

    @property
    def formula(self) -> str:
        layers = ", ".join(map(str, self.layer_ids))
        return (
            f"{len(self.layer_ids)} layers ({layers}) x {self.hidden_size:,} values x {BYTES_PER_VALUE} bytes "
            f"= {self.bytes_per_token:,} bytes per token"
        )


def geometry(
    model: Path | None,
    hidden_size: int | None,
    num_layers: int | None,
    layers: str,
    last: bool,
    like: Path | None = None,
) -> Geometry:
    """Sizes from a model folder, from the two numbers, or from the store `like`. Raises UsageError when none or two of
    them are given, InputError or StoreError when they can't be read."""
    if model is not None:
        if hidden_size is not None or num_layers is not None:
            raise UsageError("--model already says the sizes; leave out --hidden-size and --num-layers")
        info = ModelInfo.from_dir(model)
        hidden_size, num_layers = info.hidden_size, info.num_layers
    elif like is not None and hidden_size is None and num_layers is None:
        manifest = Manifest.load(like)
        hidden_size, num_layers = manifest.hidden_size, manifest.num_layers
    if hidden_size is None or num_layers is None:
        raise UsageError(
            "the model's sizes are not known; give --model DIR, --like STORE, or both --hidden-size and --num-layers "
            "(Kimi-K2.5: --hidden-size 7168 --num-layers 61)"
        )
    for option, value in (("--hidden-size", hidden_size), ("--num-layers", num_layers)):
        if value < 1:
            raise UsageError(f"{option} is {value}; a model has at least 1; give the number from its config.json")
    layer_ids = resolve_layers(layers, num_layers, last)
    return Geometry(hidden_size=hidden_size, num_layers=num_layers, layer_ids=layer_ids)
