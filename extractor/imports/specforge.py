"""SpecForge 0.2: `.ckpt` files of prepare_hidden_states.py, anywhere under the folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from extractor.imports.format import Foreign, Importer, Source, load_torch, split_columns, width_of


def _find(folder: Path) -> list[Source]:
    files = sorted(folder.rglob("*.ckpt"))
    return [_source(file, file.relative_to(folder)) for file in files]


def _source(file: Path, name: Path) -> Source:
    return Source(str(name), name, str(name.with_suffix("")), partial(_read, file))


def _read(file: Path) -> Foreign:
    """input_ids [T], loss_mask [T], hidden_state [1, T, H] after the final norm, aux_hidden_state [1, T, A * H]."""
    record = load_torch(file, "input_ids", "loss_mask", "hidden_state", "aux_hidden_state")
    width = width_of(record["hidden_state"], 3)
    return Foreign(
        sample_id=None,
        token_ids=record["input_ids"].flatten(),
        loss_mask=record["loss_mask"].flatten(),
        aux=split_columns(record["aux_hidden_state"].squeeze(0), width),
        last=None,
        left_out=1,
    )


IMPORTER = Importer(
    name="specforge",
    find=_find,
    note="the last state is left out: these files hold it after the final norm, and a store before it",
)
