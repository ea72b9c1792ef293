"""SpecForge: one `.ckpt` per sample in folders of 2,000, as its OfflineManifestReader lists them.

Its trainer multiplies `hidden_state` with the target's lm_head as it is, so the final norm is applied here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extractor.exports.format import Format, Record, pack_torch

_FILES_PER_FOLDER = 2000


def _path(number: int, sample_id: str) -> Path:
    first = number - number % _FILES_PER_FOLDER
    return Path(f"rows_{first}-{first + _FILES_PER_FOLDER}") / f"data_{number}.ckpt"


def _content(record: Record) -> dict[str, Any]:
    """input_ids int64 [T], loss_mask int64 [T], hidden_state [1, T, H], aux_hidden_state [1, T, A * H]."""
    assert record.last is not None
    return {
        "input_ids": record.input_ids,
        "loss_mask": record.loss_mask,
        "hidden_state": record.last[None],
        "aux_hidden_state": record.aux.flatten(1)[None],
    }


FORMAT = Format(name="specforge", path=_path, content=_content, pack=pack_torch, needs_norm=True, model_dtype=True)
