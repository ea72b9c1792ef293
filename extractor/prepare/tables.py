"""Records of Parquet and Arrow files, streamed in batches of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from extractor.prepare.jsontext import Raw

_ROWS = 256


def read_parquet(path: Path) -> Iterator[Raw]:
    with pq.ParquetFile(path) as file:
        yield from _rows(file.iter_batches(batch_size=_ROWS))


def read_arrow(path: Path) -> Iterator[Raw]:
    """The stream format, which `datasets` writes, or the file format."""
    with pa.memory_map(str(path)) as source:
        if source.read(6) == b"ARROW1":
            reader = ipc.open_file(source)
            batches: Iterator[pa.RecordBatch] = (reader.get_batch(i) for i in range(reader.num_record_batches))
        else:
            source.seek(0)
            batches = iter(ipc.open_stream(source))
        yield from _rows(part for batch in batches for part in _slices(batch))


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (batch.slice(start, _ROWS) for start in range(0, batch.num_rows, _ROWS))


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Raw]:
    number = 0
    for batch in batches:
        size = batch.nbytes // max(1, batch.num_rows)
        for row in range(batch.num_rows):
            yield _row(batch, row, number, size)
            number += 1


def _row(batch: pa.RecordBatch, row: int, number: int, size: int) -> Raw:
    """Columns that are null in a row are absent: Parquet gives every row all columns of the file."""
    try:
        values: dict[str, Any] = {name: batch.column(name)[row].as_py() for name in batch.schema.names}
    except UnicodeDecodeError as error:
        return Raw(number, None, None, size, ("invalid_utf8", f"a column holds bytes that are not UTF-8: {error}"))
    return Raw(number, None, {name: value for name, value in values.items() if value is not None}, size)
