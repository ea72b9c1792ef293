"""Into how many ranks a model can be split: said before an engine is started."""

from __future__ import annotations

from extractor.errors import UsageError
from extractor.model_info import ModelInfo


def require_split(info: ModelInfo, tp: int) -> None:
    """Raises UsageError unless each of `tp` ranks gets equally many attention heads of the model."""
    if info.num_heads is None or tp in (allowed := splits(info.num_heads, info.num_kv_heads)):
        return
    keys = f" and {info.num_kv_heads} key-value heads" if info.num_kv_heads not in (None, info.num_heads) else ""
    raise UsageError(
        f"--tp {tp} can't split {info.name}, which has {info.num_heads} attention heads{keys}; allowed are "
        f"{', '.join(map(str, allowed))}; pass one of them, or a part of the GPUs to each of several --replicas"
    )


def splits(heads: int, kv_heads: int | None) -> list[int]:
    """Numbers of ranks that divide the heads; each rank has whole key-value heads, or several ranks a copy of one."""
    keys = kv_heads or heads
    return [tp for tp in range(1, heads + 1) if heads % tp == 0 and max(keys, tp) % min(keys, tp) == 0]
