"""Safetensors files as `extractor export --to safetensors` writes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from extractor.imports.format import BadRecordError, Foreign, Importer, Source, load_safetensors, width_of
from extractor.layers import CONVENTION


def _find(folder: Path) -> list[Source]:
    return [
        Source(file.name, Path(file.name), file.stem, partial(_read, file))
        for file in sorted(folder.glob("*.safetensors"))
    ]


def _read(file: Path) -> Foreign:
    """input_ids [T], loss_mask [T], hidden_states [T, L, H]; all slots are aux, named by the header, else --layers."""
    tensors, header = load_safetensors(file, "input_ids", "loss_mask", "hidden_states")
    width_of(tensors["hidden_states"], 3)
    return Foreign(
        sample_id=header.get("sample_id"),
        token_ids=tensors["input_ids"],
        loss_mask=tensors["loss_mask"],
        aux=list(tensors["hidden_states"].unbind(1)),
        last=None,
        layer_ids=_layer_ids(header),
    )


def _layer_ids(header: dict[str, str]) -> tuple[int, ...] | None:
    """Ids that the header states and counts as we do."""
    if header.get("layer_convention") != CONVENTION:
        return None
    try:
        return tuple(int(part) for part in header["layer_ids"].split(","))
    except (KeyError, ValueError):
        raise BadRecordError(f"its header names the layer ids {header.get('layer_ids')!r}") from None


IMPORTER = Importer(
    name="safetensors",
    find=_find,
    note="all slots are kept, named by the files or else by --layers, in the files' order",
)
