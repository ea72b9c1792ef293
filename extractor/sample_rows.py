"""Rows of a samples file as samples: ids and masks as arrays, checked one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from extractor.errors import InputError
from extractor.sizes import counted


@dataclass(frozen=True, slots=True)
class Sample:
    """One training example. `token_ids` [T] int32; `loss_mask` [T] uint8, 1 = trained on."""

    sample_id: str
    token_ids: np.ndarray
    loss_mask: np.ndarray


def samples_of(batch: pa.RecordBatch) -> Iterator[Sample]:
    """The samples of a batch with the columns sample_id, input_ids and perhaps loss_mask. Raises InputError."""
    ids = batch.column("sample_id").to_pylist()
    tokens = batch.column("input_ids")
    masks = batch.column("loss_mask") if "loss_mask" in batch.schema.names else None
    for row, sample_id in enumerate(ids):
        token_ids = _row(tokens, row, np.int32, sample_id, "input_ids")
        mask = (
            np.ones(token_ids.size, np.uint8) if masks is None else _row(masks, row, np.uint8, sample_id, "loss_mask")
        )
        if mask.size != token_ids.size:
            raise InputError(
                f"sample {sample_id!r} has {counted(token_ids.size, 'token')} but a loss mask of {mask.size}; both "
                "must be equally long; prepare the samples again"
            )
        yield Sample(sample_id, token_ids, mask)


def _row(column: pa.Array, row: int, dtype: Any, sample_id: str, name: str) -> np.ndarray:
    values = column[row].values
    if values is None or values.null_count:
        raise InputError(f"sample {sample_id!r} has a null in {name}; integers are expected; prepare the samples again")
    wide = values.to_numpy(zero_copy_only=False)
    narrow: np.ndarray = wide.astype(dtype)
    if not np.array_equal(wide, narrow):
        raise InputError(
            f"sample {sample_id!r} has a value in {name} that does not fit {np.dtype(dtype)}; prepare the samples again"
        )
    return narrow
