"""Safetensors files as `extractor export --to safetensors` writes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from extractor.imports.format import Foreign, Importer, Source, load_safetensors


def _find(folder: Path) -> list[Source]:
    return [Source(file.name, partial(_read, file)) for file in sorted(folder.glob("*.safetensors"))]


def _read(file: Path) -> Foreign:
    """input_ids [T], loss_mask [T], hidden_states [T, L, H]; all slots count as aux, --layers names them."""
    tensors, header = load_safetensors(file, "input_ids", "loss_mask", "hidden_states")
    return Foreign(
        sample_id=header.get("sample_id", file.stem),
        token_ids=tensors["input_ids"],
        loss_mask=tensors["loss_mask"],
        aux=list(tensors["hidden_states"].unbind(1)),
        last=None,
    )


IMPORTER = Importer(name="safetensors", find=_find, note="all slots are kept, named by --layers in the files' order")
