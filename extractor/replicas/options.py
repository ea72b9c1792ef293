"""How a job is spread: the options that `extract` has beside those of Config. Nothing here imports Ray."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from extractor.errors import UsageError


def _option(help_text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": help_text, "choices": ()})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions:
    """Field names are the long option names of `extract`."""

    replicas: int = _option("engines to run on a Ray cluster, one actor each; 0 = here, without Ray", 0)
    ray_address: str = _option("Ray cluster: auto, HOST:PORT, or local to start one on this machine", "auto")
    gpus_per_replica: int = _option("GPUs of a replica; -1 = --tp where the cluster has GPUs, else none", -1)
    cpus_per_replica: int = _option("CPU cores that Ray reserves for a replica", 1)
    shard_dir: str = _option("node-local folder for shards; empty = all nodes write to --out, which they share", "")
    recompute_lost: bool = _option("compute again what lies on hosts that have left the cluster", False)
    lease_tokens: int = _option("most tokens that a replica is given at a time", 1 << 20)
    placement_timeout: float = _option("seconds to wait for the cluster to have room for all replicas", 60.0)
    stall_timeout: float = _option("seconds without a sealed sample after which a replica counts as stuck", 600.0)

    def __post_init__(self) -> None:
        for name, least in (("replicas", 0), ("gpus_per_replica", -1), ("cpus_per_replica", 1), ("lease_tokens", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{_flag(name)} is {getattr(self, name)}; it must be at least {least}")
        for name in ("placement_timeout", "stall_timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{_flag(name)} is {getattr(self, name)}; it must be a number above 0, in seconds")
        if self.shard_dir and self.shard_dir[0] not in "/$~":
            raise UsageError(
                f"--shard-dir is {self.shard_dir!r}; it must be an absolute path, as it is opened on every node"
            )
        require_replicas(self.replicas, [f.name for f in fields(self) if getattr(self, f.name) != f.default])


def require_replicas(replicas: int, given: Iterable[str]) -> None:
    """Raise UsageError where no replicas are asked for and other options are `given`, which would do nothing."""
    idle = [_flag(name) for name in given if name != "replicas"]
    if idle and not replicas:
        raise UsageError(
            f"{', '.join(idle)} would do nothing without --replicas, as the job then runs here; pass --replicas N "
            "too, or leave what needs it out"
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
