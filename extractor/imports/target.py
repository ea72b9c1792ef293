"""The store that an import fills: its manifest, from the target's folder, the options and the first sample."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from extractor import __version__
from extractor.errors import InputError, UsageError
from extractor.exports.folder import MARKER, read_marker
from extractor.imports.checks import Sound
from extractor.imports.format import Source
from extractor.layers import CONVENTION, resolve_layers
from extractor.manifest import Manifest
from extractor.model_info import ModelInfo

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """model: folder of the target, for its identity and size.  layers: ids of the aux states in the files' order, in
    this project's count (see extractor.layers); None: those that the files state, as this project's exports do, else
    eagle3.  dtype: stored; `auto` is the files'.  pad_token: cut trailing tokens
    of this id under a zero mask, which SpecForge's batches add.  force: start although the disk looks too small."""

    model: Path
    layers: str | None = None
    dtype: str = "auto"
    pad_token: int | None = None
    force: bool = False


def target_manifest(form: str, folder: Path, sources: list[Source], first: Sound, options: ImportOptions) -> Manifest:
    """Raises UsageError when --layers or --dtype do not fit the files, InputError when the model does not."""
    info = ModelInfo.from_dir(options.model)
    stated = first.layer_ids or exported_layers(folder, form, info.num_layers)
    layer_ids = _layer_ids(options.layers, stated, info.num_layers, first.has_last)
    slots = first.slots
    if len(slots) != len(layer_ids):
        named = f"--layers {options.layers or 'eagle3'} names" if stated is None else "they name"
        raise UsageError(
            f"the files hold {len(slots)} states a token, {named} {len(layer_ids)} ids {list(layer_ids)}; name the "
            "files' layers in their order with --layers"
        )
    if slots[0].shape[-1] != info.hidden_size:
        raise InputError(
            f"the files' states are {slots[0].shape[-1]} wide, {info.name} has {info.hidden_size}; pass the model that "
            "they were extracted from with --model"
        )
    return Manifest(
        model_name=info.name,
        model_config_hash=info.config_hash,
        model_dtype=info.dtype,
        num_layers=info.num_layers,
        layer_ids=layer_ids,
        layer_convention=CONVENTION,
        hidden_size=info.hidden_size,
        dtype=_dtype(slots[0].dtype, options.dtype),
        tokenizer_hash=info.tokenizer_hash,
        samples_hash=_hash(sources),
        engine=f"import-{form}",
        engine_version="unknown",
        extractor_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        options={"overflow": "saturate"},
    )


def exported_layers(folder: Path, form: str, num_layers: int) -> tuple[int, ...] | None:
    """Ids of the aux states of an export of this project, as its export.json states them; None for other folders."""
    if not (folder / MARKER).is_file():
        return None
    about = read_marker(folder)
    ids = about.get("layer_ids")
    if about.get("format") != form or about.get("layer_convention") != CONVENTION or not isinstance(ids, list):
        return None
    return tuple(sorted(k for k in ids if k != num_layers))


def _layer_ids(wanted: str | None, stated: tuple[int, ...] | None, num_layers: int, last: bool) -> tuple[int, ...]:
    named = wanted or "eagle3" if stated is None else wanted or ",".join(map(str, stated))
    layer_ids = resolve_layers(named, num_layers, last)
    if stated is not None and layer_ids[: len(stated)] != stated:
        raise UsageError(
            f"--layers {wanted} names the ids {list(layer_ids)}, the files say that they hold {list(stated)}; leave "
            "--layers out to take the files' word"
        )
    return layer_ids


def _dtype(found: torch.dtype, wanted: str) -> str:
    names = {dtype: name for name, dtype in DTYPES.items()}
    if wanted == "auto" and found in names:
        return names[found]
    if wanted not in DTYPES:
        raise UsageError(
            f"the files hold {found}, a store {' or '.join(DTYPES)}; choose with --dtype (float16 saturates beyond "
            "65,504 and counts it, bfloat16 rounds to 8 bits)"
        )
    return wanted


def _hash(sources: list[Source]) -> str:
    """Of the file names: a folder that has got more files is another set, one that has got those it lists is not."""
    names = "\0".join(sorted(source.name for source in sources))
    return hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()[:16]
