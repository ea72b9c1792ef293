"""Model-Optimizer: one `.pt` per conversation, as its OfflineSupervisedDataset reads them.

The last state stays before the final norm and the file says so (`hidden_states_prenorm`); its trainer then applies the
target's norm. Releases that do not know the flag (before 0.45) take the state for normed: don't use those.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extractor.exports.format import Format, Record, file_stem, pack_torch


def _content(record: Record) -> dict[str, Any]:
    """input_ids int64 [T], loss_mask int64 [T], hidden_states [T, H], aux_hidden_states [T, A * H]."""
    return {
        "conversation_id": record.sample_id,
        "input_ids": record.input_ids,
        "loss_mask": record.loss_mask,
        "hidden_states": record.last,
        "hidden_states_prenorm": True,
        "aux_hidden_states": record.aux.flatten(1),
    }


FORMAT = Format(
    name="modelopt",
    path=lambda number, sample_id: Path(f"{file_stem(sample_id)}.pt"),
    content=_content,
    pack=pack_torch,
    model_dtype=True,
)
