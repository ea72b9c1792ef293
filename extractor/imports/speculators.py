"""speculators 0.9 and vLLM's connector: an Arrow data set with hidden_states/hs_{row}.safetensors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from extractor.errors import InputError, UsageError
from extractor.imports.format import BadRecordError, Foreign, Importer, Source, load_safetensors, width_of


def _find(folder: Path) -> list[Source]:
    rows = _rows(folder)
    return [_source(rows, row, folder) for row in range(len(rows))]


def _source(rows: Any, row: int, folder: Path) -> Source:
    file = Path("hidden_states") / f"hs_{row}.safetensors"
    return Source(file.name, file, f"row-{row}", partial(_read, rows, row, folder / file))


def _rows(folder: Path) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UsageError("importing from speculators needs the package datasets; pip install datasets") from error
    try:
        rows = datasets.load_from_disk(str(folder)).with_format(None)
    except (FileNotFoundError, ValueError) as error:
        raise InputError(
            f"{folder} is not a data set of speculators ({error}); pass the folder that `speculators train "
            "--data-path` gets, with dataset_info.json in it"
        ) from error
    missing = [name for name in ("input_ids", "loss_mask") if name not in rows.column_names]
    if missing:
        raise InputError(f"the data set {folder} has no column {', '.join(missing)}; speculators did not make it")
    return rows


def _read(rows: Any, row: int, file: Path) -> Foreign:
    """token_ids [T], hidden_states [T, A + 1, H], the last slot before the final norm."""
    about = rows[row]
    tensors, _ = load_safetensors(file, "token_ids", "hidden_states")
    if tensors["token_ids"].tolist() != list(about["input_ids"]):
        raise BadRecordError("its token_ids are not those of its row: the data set was made anew after the states")
    width_of(tensors["hidden_states"], 3)
    slots = list(tensors["hidden_states"].unbind(1))
    return Foreign(
        sample_id=about.get("sample_id"),
        token_ids=tensors["token_ids"],
        loss_mask=torch.tensor(about["loss_mask"]),
        aux=slots[:-1],
        last=slots[-1],
    )


IMPORTER = Importer(name="speculators", find=_find, note="the last state is kept, before the final norm")
