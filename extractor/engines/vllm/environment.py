"""Environment variables that vLLM reads. The user's own settings win."""

from __future__ import annotations

import os
import warnings

from extractor.llvmlite_limits import teach_llvmlite_its_limits

_DEFAULTS = {
    # The engine core runs in this process: errors and Ctrl-C arrive as they are, and the ranks are its children.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # vLLM's own choice, fork, fails on a GPU once this process has so much as counted the devices.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # A step that waits for a slow disk must go on waiting; ranks that died are noticed by other means.
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "86400",
    # A sample may be exactly as long as the model's context; the one output token then lies beyond it. It is sampled
    # but never fed back, so no position past the context is computed.
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    # stdout carries results alone, and a page of settings for each start would hide the lines that matter.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def prepare_environment() -> None:
    """Call before vLLM is imported."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")


def prepare_cpu(tp: int) -> None:
    """vLLM's CPU build computes on one thread, binds ranks to NUMA nodes and takes half of the memory for its KV cache
    unless told otherwise."""
    teach_llvmlite_its_limits()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // tp)))
    if tp > 1:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
