"""One frozen dataclass holds everything that `extract` can be told; the command line is made from its fields."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from extractor.errors import UsageError
from extractor.paths import strings_to_paths


def _option(help_text: str, default: Any = None, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help_text, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Options of `extract`. Field names are the long option names; `help` in the metadata is their help text."""

    samples: Path = field(metadata={"help": "samples file made by `extractor prepare`, or its folder", "choices": ()})
    model: Path = field(metadata={"help": "Hugging Face model folder", "choices": ()})
    out: Path = field(metadata={"help": "store to create or continue", "choices": ()})
    engine: str = _option("inference engine", "vllm", ("vllm", "transformers"))
    tp: int = _option("tensor-parallel ranks; each writes its own shard", 1)
    layers: str = _option("layer ids: 'eagle3' = (2, n//2, n-3), or integers such as 2,30,58", "eagle3")
    last: bool = _option("also store layer id n, the last layer's output before the final norm", False)
    dtype: str = _option("stored dtype", "float16", ("float16", "bfloat16"))
    overflow: str = _option(
        "what a finite value beyond 65,504 does in fp16: become +-65,504 and be counted, or stop the run",
        "saturate",
        ("saturate", "error"),
    )
    codec: str = _option("lossless codec of the store", "none", ("none", "shuffle-zstd"))
    compute_dtype: str = _option(
        "the engine's dtype; auto = the checkpoint's on a GPU, float32 on a CPU",
        "auto",
        ("auto", "float32", "bfloat16", "float16"),
    )
    token_budget: int = _option("most tokens in one forward pass", 8192)
    chunked_prefill: bool = _option("let a long sample span several forward passes", True)
    commit_seconds: float = _option("most seconds between commits: what a killed run can lose", 10.0)
    max_in_flight: int = _option("most samples handed to the engine at a time", 256)
    compile: str = _option("torch.compile in vLLM; auto = on a GPU only", "auto", ("auto", "on", "off"))
    gpu_memory: float = _option("share of GPU memory vLLM may use", 0.9)
    canary: int = _option("samples to recompute at the end of the run and compare; 0 = none", 4)
    engine_args: str = _option(
        "JSON object of further vLLM engine arguments; those that would break extraction are refused", "{}"
    )
    trust_remote_code: bool = _option("run Python code that the model folder brings", False)
    allow_untested_engine: bool = _option("run with a vLLM version this extractor was not checked against", False)
    force: bool = _option("start although the disk looks too small", False)

    def __post_init__(self) -> None:
        strings_to_paths(self)
        for name in ("tp", "token_budget", "max_in_flight"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least 1")
        if not 0 < self.commit_seconds < math.inf:
            raise UsageError(f"--commit-seconds is {self.commit_seconds}; it must be a number above 0")
        if self.canary < 0:
            raise UsageError(f"--canary is {self.canary}; give the number of samples to recompute, 0 for none")
        if not 0 < self.gpu_memory <= 1:
            raise UsageError(f"--gpu-memory is {self.gpu_memory}; it must lie in (0, 1]")
        for item in self.__dataclass_fields__.values():
            allowed = item.metadata["choices"]
            if allowed and getattr(self, item.name) not in allowed:
                raise UsageError(
                    f"--{item.name.replace('_', '-')} is {getattr(self, item.name)!r}; allowed: {', '.join(allowed)}"
                )
        if self.engine == "transformers" and self.tp != 1:
            raise UsageError(f"--tp is {self.tp}; the transformers engine is one process; use --engine vllm or --tp 1")

    def as_json(self) -> dict[str, Any]:
        """The options as JSON values."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
