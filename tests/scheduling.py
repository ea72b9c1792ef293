"""How the engine may schedule: each case must leave the same values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_runs import LENGTHS

LAYERS = "4,1,0"  # and the last one: neither ascending nor contiguous
# Eight heads, so that eight ranks can share them.
MODEL = {"num_attention_heads": 8, "num_key_value_heads": 8}
_BASE = {"layers": LAYERS, "last": True, "token_budget": 64}
# A KV cache of seven blocks under requests that all grow by 16 tokens a step.
_TIGHT = (
    '{"block_size": 32, "num_gpu_blocks_override": 8, "long_prefill_token_threshold": 16, '
    '"scheduler_reserve_full_isl": false}'
)


@dataclass(frozen=True)
class Scheduling:
    """`options` of Config over the common ones; `share_of`: the samples are split over so many runs into one store."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = LENGTHS
    share_of: int = 1
    interrupt: bool = False

    def config(self) -> dict[str, Any]:
        return {**_BASE, **self.options}


SCHEDULING = {
    case.name: case
    for case in (
        Scheduling("chunked prefill, 64 tokens a step"),
        Scheduling("chunked prefill, 33 tokens a step", {"token_budget": 33}),
        Scheduling("chunked prefill, 7 tokens a step", {"token_budget": 7}),
        Scheduling("chunked prefill off", {"chunked_prefill": False}),
        Scheduling("240 short samples in one step", {"token_budget": 8192}, (1, 2, 3, 4, 5, 6) * 40),
        Scheduling("one-token samples", {}, (1,) * 100),
        Scheduling("samples as long as the context", {}, (128,) * 8),
        Scheduling("preemption (KV cache of 224 tokens)", {"engine_args": _TIGHT}, (100, 128, 90, 127, 64, 120, 5, 33)),
        Scheduling("interrupted, requests aborted, continued", {"token_budget": 16}, LENGTHS * 40, interrupt=True),
        Scheduling("asynchronous scheduling off", {"engine_args": '{"async_scheduling": false}'}),
        Scheduling("torch.compile on", {"compile": "on"}),
        Scheduling("two replicas, one store", share_of=2),
        Scheduling("computed and stored in bf16", {"compute_dtype": "bfloat16", "dtype": "bfloat16"}),
        Scheduling("TP 2", {"tp": 2}),
        Scheduling("TP 4", {"tp": 4}),
        Scheduling("TP 8", {"tp": 8}),
    )
}
