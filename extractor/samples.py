"""The samples file: one Parquet row per sample, written by `prepare`, read by `plan` and `extract`."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from extractor.errors import InputError, UsageError
from extractor.sample_rows import Sample as Sample
from extractor.sample_rows import samples_of

NAME = "samples.parquet"  # what `prepare` calls it
SEGMENT_KINDS = ("prompt", "thinking", "response", "tool")
SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("source", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.uint8())),
        ("num_tokens", pa.int32()),
        (
            "segments",
            pa.list_(pa.struct([("kind", pa.string()), ("start", pa.int32()), ("end", pa.int32())])),
        ),
        ("origin", pa.struct([("file", pa.string()), ("record", pa.int64())])),
    ]
)
_REQUIRED = ("sample_id", "input_ids")
_ROWS_PER_BATCH = 1024


class SamplesFile:
    """Read-only view of a samples file. Columns `sample_id` and `input_ids` are required; a missing `loss_mask`
    means that every token is trained on. Opening reads ids and lengths only; token ids are streamed."""

    def __init__(self, path: Path | str) -> None:
        """`path`: the file, or the folder that `prepare` wrote it to. Raises InputError when the file is missing, not
        Parquet, empty, of other types, or has bad ids."""
        self.path = _file(Path(path))
        self._parquet = _open(self.path)
        self._check_types()
        ids, lengths = self._scan()
        self.sample_ids: list[str] = ids
        self.lengths: np.ndarray = lengths
        self._check_ids()
        if not self._optional("loss_mask"):
            _warn_without_mask(self.path)

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def num_tokens(self) -> int:
        return int(self.lengths.sum())

    def content_hash(self) -> str:
        """Hash of ids, tokens and masks in file order; independent of compression and row groups."""
        digest = hashlib.sha256()
        for sample in self:
            digest.update(sample.sample_id.encode() + b"\0")
            digest.update(np.int64(sample.token_ids.size).tobytes())
            digest.update(sample.token_ids.tobytes())
            digest.update(sample.loss_mask.tobytes())
        return digest.hexdigest()[:16]

    def __iter__(self) -> Iterator[Sample]:
        """All samples in file order, streamed."""
        columns = ["sample_id", "input_ids", *self._optional("loss_mask")]
        for batch in self._parquet.iter_batches(batch_size=_ROWS_PER_BATCH, columns=columns):
            yield from samples_of(batch)

    def check_tokens(self, vocab_size: int) -> None:
        """Raise InputError naming the first sample with a token id outside [0, vocab_size)."""
        for sample in self:
            bad = np.flatnonzero((sample.token_ids < 0) | (sample.token_ids >= vocab_size))
            if bad.size:
                raise InputError(
                    f"sample {sample.sample_id!r} in {self.path} has token id {int(sample.token_ids[bad[0]])} at "
                    f"position {int(bad[0])}; the model's vocabulary allows 0 to {vocab_size - 1}; prepare the samples "
                    "with this model's tokenizer"
                )

    def _optional(self, name: str) -> list[str]:
        return [name] if name in self._parquet.schema_arrow.names else []

    def _check_types(self) -> None:
        schema = self._parquet.schema_arrow
        missing = [name for name in _REQUIRED if name not in schema.names]
        if missing:
            raise InputError(
                f"{self.path} has no column {', '.join(missing)}; found {', '.join(schema.names) or 'none'}; make the "
                "file with `extractor prepare`"
            )
        for name in ("sample_id", "input_ids", *self._optional("loss_mask")):
            got = schema.field(name).type
            if not _accepts(name, got):
                raise InputError(
                    f"column {name} of {self.path} has type {got}, expected {SCHEMA.field(name).type}; "
                    "make the file with `extractor prepare`"
                )

    def _scan(self) -> tuple[list[str], np.ndarray]:
        ids: list[str] = []
        lengths: list[np.ndarray] = []
        for batch in self._parquet.iter_batches(batch_size=_ROWS_PER_BATCH, columns=["sample_id", "input_ids"]):
            ids += batch.column("sample_id").to_pylist()
            lengths.append(
                pc.fill_null(pc.list_value_length(batch.column("input_ids")), 0).to_numpy(zero_copy_only=False)
            )
        if not ids:
            raise InputError(f"{self.path} holds no samples; at least one is needed; run `extractor prepare` again")
        return ids, np.concatenate(lengths).astype(np.int64)

    def _check_ids(self) -> None:
        if None in self.sample_ids:
            raise InputError(
                f"row {self.sample_ids.index(None)} of {self.path} has no sample_id; "  # type: ignore[arg-type]
                "each sample needs a unique one"
            )
        empty = np.flatnonzero(self.lengths == 0)
        if empty.size:
            raise InputError(
                f"sample {self.sample_ids[int(empty[0])]!r} in {self.path} has no tokens ({empty.size} "
                "such); each sample needs at least one; drop them and prepare again"
            )
        if len(set(self.sample_ids)) != len(self.sample_ids):
            seen: set[str] = set()
            twice = next(i for i in self.sample_ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
            raise InputError(
                f"sample id {twice!r} stands more than once in {self.path}; ids must be unique; rename or "
                "drop the duplicates"
            )


@cache  # Python's own filter forgets what it has said when a library changes the filters
def _warn_without_mask(path: Path) -> None:
    warnings.warn(f"{path} has no column loss_mask, so every token of it is trained on", stacklevel=1)


def _accepts(name: str, got: pa.DataType) -> bool:
    if name == "sample_id":
        return bool(pa.types.is_string(got) or pa.types.is_large_string(got))
    is_list = pa.types.is_list(got) or pa.types.is_large_list(got)
    return bool(is_list and pa.types.is_integer(got.value_type))


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    if not (path / NAME).is_file():
        raise InputError(f"{path} is a folder without {NAME}; pass the file, or `extractor prepare`'s folder")
    return path / NAME


def _open(path: Path) -> pq.ParquetFile:
    if not path.is_file():
        raise InputError(f"samples file {path} does not exist; make it with `extractor prepare`")
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{path} is not a readable Parquet file ({error}); make it with `extractor prepare`"
        ) from error


def write_samples(path: Path | str, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows with the columns of SCHEMA to `path`; a row without `loss_mask` is trained on everywhere, other
    missing columns are null. For small sets and tests; `prepare` streams."""
    if not rows:
        raise UsageError("there are no samples to write; at least one is needed")
    table = pa.Table.from_pylist([_complete(row) for row in rows], schema=SCHEMA)
    pq.write_table(table, path)


def _complete(row: dict[str, Any]) -> dict[str, Any]:
    num_tokens = len(row["input_ids"])
    return {"loss_mask": [1] * num_tokens, **row, "num_tokens": num_tokens}
