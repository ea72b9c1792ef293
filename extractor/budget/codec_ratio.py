"""How far the lossless codec shrinks states, measured on a store that used it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from extractor.budget.geometry import Geometry
from extractor.budget.stores import FoundStore, look_at


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecRatio:
    """Stored bytes / raw bytes of the tiles of the store `origin`, over `tokens`."""

    ratio: float
    tokens: int
    origin: Path


def codec_ratio(like: Path | None, nearby: Sequence[FoundStore], sizes: Geometry) -> CodecRatio | None:
    """The ratio of the store `like` if it has a codec, else of the store `nearby` with most tokens whose rows have the
    same hidden size: other models' states compress differently. None where there is no such store."""
    named = _ratio(look_at(like)) if like else None
    if named:
        return named
    ratios = [_ratio(store) for store in nearby if store.manifest.hidden_size == sizes.hidden_size]
    return max(filter(None, ratios), key=lambda ratio: ratio.tokens, default=None)


def _ratio(store: FoundStore) -> CodecRatio | None:
    if store.codec_ratio is None:
        return None
    return CodecRatio(ratio=store.codec_ratio, tokens=store.tokens, origin=store.path)
