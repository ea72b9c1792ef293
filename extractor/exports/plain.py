"""Plain safetensors: the rows as stored, with what they are in the header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extractor.exports.format import Format, Record, file_stem, pack_safetensors


def _content(record: Record) -> dict[str, Any]:
    """input_ids int64 [T], loss_mask int64 [T], hidden_states [T, L, H]; header: sample id, layer ids, convention."""
    return {
        "input_ids": record.input_ids,
        "loss_mask": record.loss_mask,
        "hidden_states": record.states,
        "sample_id": record.sample_id,
        "layer_ids": ",".join(map(str, record.manifest.layer_ids)),
        "layer_convention": record.manifest.layer_convention,
    }


FORMAT = Format(
    name="safetensors",
    path=lambda number, sample_id: Path(f"{file_stem(sample_id)}.safetensors"),
    content=_content,
    pack=pack_safetensors,
    needs_last=False,
)
