"""What a model folder says about itself, read from its JSON files alone: no torch, no transformers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extractor.errors import InputError

# What engines load; not a trainer's own *.bin beside them.
WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Geometry and identity of a model. Sizes are counts; `dtype` is the checkpoint's, as in config.json. Heads are
    None where the config does not give one number for all layers."""

    path: Path
    name: str
    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    num_heads: int | None
    num_kv_heads: int | None
    max_positions: int | None
    dtype: str
    config_hash: str
    tokenizer_hash: str

    @classmethod
    def from_dir(cls, path: Path | str) -> ModelInfo:
        """Read `path/config.json`. Raises InputError when it is missing, unreadable or lacks a size."""
        path = Path(path)
        raw = _read_config(path)
        text = {**raw, **raw["text_config"]} if isinstance(raw.get("text_config"), dict) else raw
        return cls(
            path=path,
            name=path.resolve().name,
            architecture=(raw.get("architectures") or ["unknown"])[0],
            num_layers=_num_layers(text, path),
            hidden_size=_size(text, path, "hidden_size", "n_embd", "d_model"),
            vocab_size=_size(text, path, "vocab_size"),
            num_heads=_optional_size(text, "num_attention_heads", "n_head"),
            num_kv_heads=_optional_size(text, "num_key_value_heads"),
            max_positions=text.get("max_position_embeddings") or text.get("n_positions"),
            dtype=str(text.get("dtype") or text.get("torch_dtype") or "float32"),
            config_hash=_hash_bytes(json.dumps(raw, sort_keys=True).encode()),
            tokenizer_hash=_tokenizer_hash(path),
        )

    def require_weights(self) -> None:
        """Raise InputError unless the folder holds weight files."""
        if not any(next(self.path.glob(pattern), None) for pattern in WEIGHT_PATTERNS):
            raise InputError(
                f"{self.path} has a config.json but no weights; expected {' or '.join(WEIGHT_PATTERNS)}; "
                "download the whole model folder and pass that"
            )


def _read_config(path: Path) -> dict[str, Any]:
    if path.is_file():
        raise InputError(f"{path} is a file; pass the Hugging Face model folder that it lies in")
    if not path.is_dir():
        raise InputError(f"model folder {path} does not exist; pass a Hugging Face model folder")
    file = path / "config.json"
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} has no config.json, so it is not a Hugging Face model folder; pass one") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} can't be read: {error}; restore the file") from error
    if not isinstance(raw, dict):
        raise InputError(f"{file} holds a JSON {type(raw).__name__}, expected an object; restore the file")
    return raw


def _size(config: dict[str, Any], path: Path, *names: str) -> int:
    size = _optional_size(config, *names)
    if size is None:
        raise InputError(f"{path / 'config.json'} has no positive integer under {' or '.join(names)}; restore the file")
    return size


def _optional_size(config: dict[str, Any], *names: str) -> int | None:
    values = (config.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _num_layers(config: dict[str, Any], path: Path) -> int:
    # Nemotron-H names the kind of each layer and leaves the number out.
    kinds = config.get("layers_block_type") or config.get("hybrid_override_pattern")
    if kinds and not config.get("num_hidden_layers"):
        return len(kinds)
    return _size(config, path, "num_hidden_layers", "n_layer", "num_layers")


def _tokenizer_hash(path: Path) -> str:
    parts = [(name, path / name) for name in _TOKENIZER_FILES if (path / name).is_file()]
    return _hash_bytes(b"".join(name.encode() + file.read_bytes() for name, file in parts)) if parts else "none"


def _hash_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
