"""Lengths out of Parquet and Arrow files: a count column where there is one, else the list offsets of the ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from extractor.budget.lengths import Int64s
from extractor.budget.records import EXPECTED, ID_FIELDS, LENGTH_FIELDS
from extractor.budget.tally import Reject, Tally, check_range
from extractor.errors import InputError

_ROWS_PER_BATCH = 1 << 20
_IDS_PER_BATCH = 1 << 22  # 16 MiB of int32, and several times that while Arrow decodes them
_DENSE_PAIRS = 1 << 24  # 128 MiB of counts; beyond it equal pairs are found by sorting, 5 times slower
_SOURCE = "source"


def read_parquet(file: Path, source: str, tally: Tally) -> None:
    """Add the lengths of every row to `tally`: under the names in column `source` where there is one, else `source`.

    Raises InputError when the file can't be read, has no length, or a length is negative or absurd.
    """
    try:
        parquet = _open_parquet(file)
        name = _parquet_field(parquet, file)
        by = [_SOURCE] if _has_sources(parquet.schema_arrow) else []
        batches = parquet.iter_batches(batch_size=_batch_rows(parquet, name), columns=[name, *by])
        _add_batches(batches, name, file, source, tally)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file} is not a readable Parquet file ({error}); restore it, then plan again") from error


def has_loss_mask(file: Path) -> bool:
    return "loss_mask" in pq.read_schema(file).names


def has_token_ids(file: Path) -> bool:
    """Whether a Parquet file has the columns that `SamplesFile` needs."""
    return {"sample_id", "input_ids"} <= set(pq.read_schema(file).names)


def _open_parquet(file: Path) -> pq.ParquetFile:
    """Source names as a dictionary: 100 million of them as strings would take most of the time."""
    parquet = pq.ParquetFile(file)
    if _SOURCE not in parquet.schema_arrow.names:
        return parquet
    return pq.ParquetFile(file, metadata=parquet.metadata, read_dictionary=[_SOURCE])


def read_arrow(file: Path, source: str, tally: Tally) -> None:
    """The same for an Arrow stream or file, as `datasets` saves them."""
    try:
        with pa.memory_map(str(file)) as mapped:
            reader = _arrow_reader(mapped)
            name = _field(reader.schema, file)
            _add_batches(iter(reader), name, file, source, tally)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file} is not a readable Arrow file ({error}); restore it, then plan again") from error


def _arrow_reader(mapped: pa.NativeFile) -> pa.RecordBatchReader:
    try:
        return pa.ipc.open_stream(mapped)
    except pa.ArrowInvalid:
        mapped.seek(0)
        opened = pa.ipc.open_file(mapped)
        batches = (opened.get_batch(i) for i in range(opened.num_record_batches))
        return pa.RecordBatchReader.from_batches(opened.schema, batches)


def _field(schema: pa.Schema, file: Path) -> str:
    for name in (*LENGTH_FIELDS, *ID_FIELDS):
        if name in schema.names:
            return _checked_field(name, schema, file)
    raise InputError(
        f"{file} has no column with a length; expected {EXPECTED}, found {', '.join(schema.names) or 'none'}; "
        "tokenize it first (`extractor prepare`)"
    )


def _checked_field(name: str, schema: pa.Schema, file: Path) -> str:
    kind = schema.field(name).type
    if not (pa.types.is_integer(kind) or _is_list(kind)):
        raise InputError(f"column {name} of {file} has type {kind}; integers or lists of them are expected")
    return name


def _parquet_field(parquet: pq.ParquetFile, file: Path) -> str:
    """The field to read. A stored count is believed only when the ids' own metadata adds up to the same total:
    reading counts is a thousand times less work than reading ids, and a wrong count is a wrong plan."""
    schema = parquet.schema_arrow
    name = _field(schema, file)
    ids = [field for field in ID_FIELDS if field in schema.names and _is_list(schema.field(field).type)]
    if not ids or _is_list(schema.field(name).type):
        return name
    counted = sum(_total(batch.column(0)) for batch in parquet.iter_batches(_ROWS_PER_BATCH, columns=[name]))
    return name if counted == _stored_values(parquet, ids[0]) else ids[0]


def _stored_values(parquet: pq.ParquetFile, name: str) -> int:
    """The number of values of a list column, from the footer; a null or empty list counts as one."""
    metadata: Any = parquet.metadata
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    column = next(i for i, path in enumerate(paths) if path.split(".")[0] == name)
    counts: list[int] = [metadata.row_group(i).column(column).num_values for i in range(metadata.num_row_groups)]
    return sum(counts)


def _total(column: pa.Array) -> int:
    return int(pc.sum(column).as_py() or 0)


def _batch_rows(parquet: pq.ParquetFile, name: str) -> int:
    if not _is_list(parquet.schema_arrow.field(name).type):
        return _ROWS_PER_BATCH
    rows: int = parquet.metadata.num_rows
    per_row = _stored_values(parquet, name) // max(1, rows) + 1
    return max(1, min(_ROWS_PER_BATCH, _IDS_PER_BATCH // per_row))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _has_sources(schema: pa.Schema) -> bool:
    """Whether the rows name their source, as text (which is read as a dictionary)."""
    return _SOURCE in schema.names and bool(pa.types.is_dictionary(schema.field(_SOURCE).type))


def _add_batches(batches: Iterator[pa.RecordBatch], name: str, file: Path, source: str, tally: Tally) -> None:
    first_row = 1
    for batch in batches:
        column = batch.column(name)
        lengths = pc.list_value_length(column) if _is_list(column.type) else column
        good = pc.fill_null(pc.greater(lengths, 0), False)
        _check_batch(lengths, good, first_row, file, tally)
        kept = lengths.cast(pa.int64()).filter(good).to_numpy(zero_copy_only=False)
        if _SOURCE in batch.schema.names:
            _add_grouped(batch.column(_SOURCE).filter(good), kept, source, tally)
        else:
            tally.add(source, kept)
        first_row += batch.num_rows


def _check_batch(lengths: pa.Array, good: pa.Array, first_row: int, file: Path, tally: Tally) -> None:
    """Name every row without a length; raise for a negative or absurd one."""
    if pc.max(lengths).as_py() is not None:
        for extreme in (pc.min(lengths), pc.max(lengths)):
            check_range(extreme.as_py(), file, first_row + pc.index(lengths, extreme).as_py())
    for row in np.flatnonzero(~good.to_numpy(zero_copy_only=False)):
        reason = "has no tokens" if lengths[int(row)].is_valid else "has no length (null)"
        tally.reject(Reject(file, first_row + int(row), reason))


def _add_grouped(sources: pa.Array, lengths: Int64s, default: str, tally: Tally) -> None:
    """Count equal (source, length) pairs as one integer each; the loop is over sources, never over samples."""
    encoded = sources if pa.types.is_dictionary(sources.type) else sources.dictionary_encode()
    names = [default if name is None else name for name in encoded.dictionary.to_pylist()] + [default]
    codes = pc.fill_null(encoded.indices.cast(pa.int64()), len(names) - 1).to_numpy(zero_copy_only=False)
    width = int(lengths.max(initial=0)) + 1
    pairs, counts = _distinct(codes * width + lengths, len(names) * width)
    codes, lengths = np.divmod(pairs, width)
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], codes.size], strict=True):
        tally.add(names[int(codes[start])], lengths[start:stop], counts[start:stop])


def _distinct(values: Int64s, limit: int) -> tuple[Int64s, Int64s]:
    """The distinct values in [0, limit), ascending, and how often each stands in `values`."""
    if limit > _DENSE_PAIRS:
        distinct, counts = np.unique(values, return_counts=True)
        return distinct, counts.astype(np.int64)
    dense = np.bincount(values)
    distinct = np.flatnonzero(dense)
    return distinct, dense[distinct]
