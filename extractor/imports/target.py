"""The store that an import fills: its manifest, from the target's folder, the options and the first sample."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from extractor import __version__
from extractor.errors import InputError, UsageError
from extractor.imports.format import Foreign, Source
from extractor.layers import CONVENTION, resolve_layers
from extractor.manifest import Manifest
from extractor.model_info import ModelInfo

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """model: folder of the target, for its identity and size.  layers: ids of the aux states in the files' order, in
    this project's count (see extractor.layers).  dtype: stored; `auto` is the files'.  pad_token: cut trailing tokens
    of this id under a zero mask, which SpecForge's batches add."""

    model: Path
    layers: str = "eagle3"
    dtype: str = "auto"
    pad_token: int | None = None


def slots_of(sample: Foreign) -> list[torch.Tensor]:
    """L tensors [T, H]: the aux states, then the last one where there is one."""
    return sample.aux if sample.last is None else [*sample.aux, sample.last]


def target_manifest(form: str, sources: list[Source], first: Foreign, options: ImportOptions) -> Manifest:
    """Raises UsageError when --layers or --dtype do not fit the files, InputError when the model does not."""
    info = ModelInfo.from_dir(options.model)
    layer_ids = resolve_layers(options.layers, info.num_layers, last=first.last is not None)
    slots = slots_of(first)
    if len(slots) != len(layer_ids):
        raise UsageError(
            f"the files hold {len(slots)} states a token, --layers {options.layers} names {len(layer_ids)} ids "
            f"{list(layer_ids)}; name the files' layers in their order with --layers"
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
    """Of the file names: a folder that has got more files is another set."""
    return hashlib.sha256("\0".join(source.name for source in sources).encode()).hexdigest()[:16]
