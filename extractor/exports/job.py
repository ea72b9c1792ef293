"""`export_store`: a store -> a folder that a trainer reads. Files appear whole or not at all; a second run goes on,
keeps the files that are as they were written, and writes the others anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from extractor.contract import require_last
from extractor.errors import UsageError
from extractor.exports import folder
from extractor.exports.final_norm import Norm, load_final_norm
from extractor.exports.format import Format, Record
from extractor.exports.ledger import Ledger
from extractor.loader.samples import SampleSet, require_whole
from extractor.manifest import Manifest
from extractor.paths import strings_to_paths
from extractor.store import Store, StoredSample

FORMATS = {"speculators": "speculators", "specforge": "specforge", "modelopt": "modelopt", "safetensors": "plain"}
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """dtype: of the written states; `auto` is what the format's reader needs.  model: folder of the target, for formats
    with the last state after its final norm.  index_only: leave the states in the store, for a reader that takes them
    from there.  force: start although the disk looks too small."""

    dtype: str = "auto"
    model: Path | None = None
    index_only: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        strings_to_paths(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    """`written` files are this run's, `kept` ones of an earlier run; `bytes` were written now."""

    format: str
    out: str
    dtype: str
    samples: int
    tokens: int
    written: int
    kept: int
    bytes: int


def export_store(
    path: Path | str,
    to: str,
    out: Path | str,
    options: ExportOptions | None = None,
    report: Callable[[int, int], None] | None = None,
) -> ExportSummary:
    """Write every sealed sample of the store to `out` in format `to`; `report(done, total)` after each.

    Raises UsageError for an unknown format or dtype, StoreError when the store lacks what the reader needs or `out`
    holds something else or can't be written, DiskFullError for too little room, CorruptError for a damaged sample.
    """
    options = options or ExportOptions()
    out = Path(out)
    form = find_format(to)
    store = Store.open(path, check=True)
    if form.needs_last:
        require_last(store.manifest, f"{form.name}'s trainer")
    dtype = _dtype(form, store.manifest, options)
    convert = _Converter(store.manifest, dtype, _norm(form, options))
    require_whole([store], otherwise="")
    samples = SampleSet(store)
    about = _about(form, samples, _name(dtype))
    ledger = Ledger(out)
    tokens = 0 if options.index_only else _missing_tokens(store, form, ledger)
    folder.claim(out, about, tokens * int(np.prod(store.manifest.row_shape)) * dtype.itemsize, options.force)
    sizes = []
    with ledger:
        for number, sample_id in enumerate(store):
            file = form.path(number, sample_id)
            if not options.index_only and not ledger.has_whole(file):
                sizes.append(folder.write(form, convert.record(store[sample_id]), out, file, ledger))
            if report:
                report(number + 1, len(store))
    if not options.index_only:
        folder.list_files(form, store, out)
    form.finish(store, out)
    return ExportSummary(
        format=form.name,
        out=str(out),
        dtype=_name(dtype),
        samples=len(store),
        tokens=int(store.lengths.sum()),
        written=len(sizes),
        kept=0 if options.index_only else len(store) - len(sizes),
        bytes=sum(sizes),
    )


def find_format(name: str) -> Format:
    """Raises UsageError for an unknown one."""
    if name not in FORMATS:
        raise UsageError(f"there is no export format {name!r}; {', '.join(FORMATS)} are there; pass one with --to")
    form: Format = import_module(f"extractor.exports.{FORMATS[name]}").FORMAT
    return form


def _missing_tokens(store: Store, form: Format, ledger: Ledger) -> int:
    rows = zip(store, store.lengths, strict=True)
    return sum(int(n) for row, (sample_id, n) in enumerate(rows) if not ledger.lists(form.path(row, sample_id)))


class _Converter:
    """Stored samples -> records in another dtype, slots in the order that trainers expect."""

    def __init__(self, manifest: Manifest, dtype: torch.dtype, norm: Norm | None) -> None:
        self._manifest, self._dtype, self._norm = manifest, dtype, norm
        ids = np.array(manifest.layer_ids)
        self._aux = [int(slot) for slot in np.argsort(ids) if ids[slot] != manifest.num_layers]
        self._has_last = manifest.num_layers in manifest.layer_ids

    def record(self, sample: StoredSample) -> Record:
        states = torch.from_numpy(sample.hidden_states.view(np.uint16)).view(_DTYPES[self._manifest.dtype])
        last = states[:, -1] if self._has_last else None
        if last is not None and self._norm is not None:
            last = self._norm(last.float())
        return Record(
            sample_id=sample.sample_id,
            input_ids=torch.from_numpy(sample.token_ids).long(),
            loss_mask=torch.from_numpy(sample.loss_mask).long(),
            states=states.to(self._dtype),
            aux=states[:, self._aux].to(self._dtype),
            last=None if last is None else last.to(self._dtype).contiguous(),
            manifest=self._manifest,
        )


def _dtype(form: Format, manifest: Manifest, options: ExportOptions) -> torch.dtype:
    if options.dtype == "auto":
        wanted = manifest.model_dtype if form.model_dtype else manifest.dtype
        return _DTYPES.get(wanted, torch.bfloat16)
    if options.dtype not in _DTYPES:
        raise UsageError(f"dtype {options.dtype!r} can't be written; auto, {', '.join(_DTYPES)} can; pass one of them")
    return _DTYPES[options.dtype]


def _norm(form: Format, options: ExportOptions) -> Norm | None:
    if not form.needs_norm:
        return None
    if options.model is None:
        raise UsageError(
            f"{form.name} reads the last state after the target's final norm, and the store holds it before; the "
            "norm's weight is needed: pass the target's folder with --model"
        )
    return load_final_norm(options.model)


def _about(form: Format, samples: SampleSet, dtype: str) -> dict[str, Any]:
    """What two runs must agree in to share a folder, and what a reader of it should know."""
    manifest = samples.manifest
    return {
        "format": form.name,
        "dtype": dtype,
        "samples": samples.digest,
        "store": manifest.fingerprint(),
        "layer_ids": list(manifest.layer_ids),
        "layer_convention": manifest.layer_convention,
        "model_name": manifest.model_name,
        "last_state": "after the final norm" if form.needs_norm else "before the final norm",
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def as_json(summary: ExportSummary) -> dict[str, Any]:
    return dataclasses.asdict(summary)
