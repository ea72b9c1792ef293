"""What an export format is: where a sample goes, what is in its file, and what stands beside the files."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
import xxhash

from extractor.manifest import Manifest
from extractor.store import Store

_LONGEST_NAME = 200  # bytes; file systems allow 255, and suffixes are added


@dataclass(frozen=True, slots=True)
class Record:
    """One sample as trainers count it. input_ids int64 [T]; loss_mask int64 [T]; states [T, L, H] in the store's slot
    order; aux [T, A, H] the slots but n, ascending by layer id; last [T, H] slot n, or None where there is none."""

    sample_id: str
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    states: torch.Tensor
    aux: torch.Tensor
    last: torch.Tensor | None
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """path(number, sample_id): the file's place in the export.  content(record): what it holds.  pack(content): its
    bytes.  finish(store, out): writes what stands beside the files; raises StoreError.  needs_last: slot n must be
    there.  needs_norm: its reader expects the last state after the target's final norm.  model_dtype: its reader
    computes in the file's dtype, which must then be the target's; else the store's is kept."""

    name: str
    path: Callable[[int, str], Path]
    content: Callable[[Record], dict[str, Any]]
    pack: Callable[[dict[str, Any]], bytes]
    finish: Callable[[Store, Path], None] = lambda store, out: None
    needs_last: bool = True
    needs_norm: bool = False
    model_dtype: bool = False


def pack_torch(content: dict[Any, Any]) -> bytes:
    """Packed in memory: written to a full disk, torch.save hides the reason behind an error of its own."""
    packed = io.BytesIO()
    torch.save(content, packed)
    return packed.getvalue()


def pack_safetensors(content: dict[str, Any]) -> bytes:
    """Tensors become tensors, everything else text in the header."""
    from safetensors.torch import save

    tensors = {name: value.contiguous() for name, value in content.items() if isinstance(value, torch.Tensor)}
    return save(tensors, {name: str(value) for name, value in content.items() if name not in tensors})


def file_stem(sample_id: str) -> str:
    """A file name for any id; ids of letters, digits and - _ . ~ stay as they are."""
    name = quote(sample_id, safe="")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 17]}-{xxhash.xxh3_64_hexdigest(sample_id.encode())}"
