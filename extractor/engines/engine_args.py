"""The user's own vLLM engine arguments (`--engine-args`): which are allowed, and why others are not. No vLLM needed."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any

from extractor.errors import UsageError

_OURS = {"worker_cls", "additional_config", "skip_tokenizer_init", "disable_log_stats"}
_OPTION = {
    "model": "--model",
    "tensor_parallel_size": "--tp",
    "dtype": "--compute-dtype",
    "max_num_batched_tokens": "--token-budget",
    "max_num_seqs": "--max-in-flight",
    "enable_chunked_prefill": "--chunked-prefill",
    "gpu_memory_utilization": "--gpu-memory",
    "enforce_eager": "--compile",
    "trust_remote_code": "--trust-remote-code",
}
# Argument -> (values that are harmless, why the others are refused).
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "enable_prefix_caching": ((False,), "tokens found in the cache are not computed, so they have no hidden states"),
    "pipeline_parallel_size": ((1,), "layers of other stages do not reach the last one in most models"),
    "prefill_context_parallel_size": ((1,), "each rank then holds some tokens of each sample, in permuted order"),
    "decode_context_parallel_size": ((1,), "it was not verified with this extractor"),
    "data_parallel_size": (
        (1,),
        "requests are fed to one engine; run one extract for each replica, with a share of the samples",
    ),
    "enable_dbo": ((False,), "micro-batches split a step, which was not verified with this extractor"),
    "speculative_config": ((None,), "rows of draft tokens would be mixed with those of samples"),
    "kv_transfer_config": ((None,), "tokens whose KV comes from elsewhere are not computed here"),
    "enable_lora": ((False,), "the manifest names one model; merge the adapter into its weights first"),
    "runner": (("auto", "generate"), "only a generating model runs the decoder layers as trained"),
}
# These change when and where something is computed, not what: a store may be continued with others.
_NEUTRAL = {
    "async_scheduling",
    "block_size",
    "distributed_executor_backend",
    "kv_cache_memory_bytes",
    "load_format",
    "max_parallel_loading_workers",
    "num_gpu_blocks_override",
    "scheduler_reserve_full_isl",
    "safetensors_load_strategy",
}


_USE = """give one object such as '{"num_gpu_blocks_override": 512}'"""


def parse_engine_args(text: str) -> dict[str, Any]:
    """JSON object -> keyword arguments of vLLM's EngineArgs. Raises UsageError for those that break extraction."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--engine-args is not JSON ({error}); {_USE}") from None
    if not isinstance(values, dict):
        raise UsageError(f"--engine-args is a JSON {type(values).__name__}; {_USE}")
    for name, value in values.items():
        _check(name, value)
    return values


def arguments_that_change_values(values: dict[str, Any]) -> dict[str, Any]:
    """Those that a store's fingerprint keeps."""
    return {name: value for name, value in sorted(values.items()) if name not in _NEUTRAL}


def require_known(values: Iterable[str], known: Iterable[str]) -> None:
    """Raises UsageError for a name that the installed vLLM lacks."""
    known = set(known)
    for name in values:
        if name not in known:
            close = difflib.get_close_matches(name, known, 3)
            hint = f"; close to it: {', '.join(close)}" if close else "; leave it out"
            raise UsageError(f"--engine-args names {name!r}, which this vLLM does not know{hint}")


def _check(name: str, value: Any) -> None:
    if name in _OURS:
        raise UsageError(f"--engine-args may not set {name}: the extractor sets it itself; leave it out")
    if name in _OPTION:
        raise UsageError(f"--engine-args may not set {name}; use {_OPTION[name]}")
    harmless, reason = _REFUSED.get(name, ((value,), ""))
    if value not in harmless:
        raise UsageError(f"--engine-args sets {name} to {value!r}, which is refused: {reason}; leave it out")
