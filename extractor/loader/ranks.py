"""Which rank this process is."""

from __future__ import annotations

import os

import torch.distributed as dist

from extractor.errors import UsageError


def resolve_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world_size) as given, else torch.distributed's, else (0, 1). Raises UsageError for an impossible pair, and
    where a launcher has started several processes that do not know each other yet."""
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank is {rank} and world_size {world_size}; pass both or neither")
    if rank is None or world_size is None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        _require_no_launcher()
        return 0, 1
    if world_size < 1:
        raise UsageError(f"world_size is {world_size}; it must be at least 1")
    if not 0 <= rank < world_size:
        ranks = "its one rank is 0" if world_size == 1 else f"its ranks are 0 to {world_size - 1}"
        raise UsageError(f"rank is {rank} and world_size {world_size}; {ranks}; correct one of the two")
    return rank, world_size


def _require_no_launcher() -> None:
    """Each of its processes would take all samples for its own."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count.isdecimal() and int(count) > 1:
        raise UsageError(
            f"a launcher started {count} processes (WORLD_SIZE), but torch.distributed is not initialized; call "
            "torch.distributed.init_process_group() first, or pass rank and world_size"
        )
