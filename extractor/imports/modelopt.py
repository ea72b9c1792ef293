"""Model-Optimizer: one `.pt` per conversation."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from extractor.imports.format import Foreign, Importer, Source, load_torch, split_columns, width_of


def _find(folder: Path) -> list[Source]:
    return [Source(file.name, Path(file.name), file.stem, partial(_read, file)) for file in sorted(folder.glob("*.pt"))]


def _read(file: Path) -> Foreign:
    """input_ids [T], hidden_states [T, H], aux_hidden_states [T, A * H], loss_mask [T] or none (all trained)."""
    record = load_torch(file, "input_ids", "hidden_states", "aux_hidden_states")
    tokens, mask = record["input_ids"].flatten(), record.get("loss_mask")
    prenorm, stated = record.get("hidden_states_prenorm"), record.get("conversation_id")
    width = width_of(record["hidden_states"], 2)
    return Foreign(
        sample_id=None if stated is None else str(stated),
        token_ids=tokens,
        loss_mask=torch.as_tensor(mask).flatten() if mask is not None else torch.ones_like(tokens),
        aux=split_columns(record["aux_hidden_states"], width),
        last=record["hidden_states"] if prenorm else None,
        left_out=0 if prenorm else 1,
    )


IMPORTER = Importer(
    name="modelopt",
    find=_find,
    note="the last state is kept where the files say that it is from before the final norm",
)
