"""Buckets -> samples.parquet: shuffled, without duplicates, with each source's share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from extractor.prepare.draw import Lots, limits, lot
from extractor.prepare.report import DUPLICATE, KEPT, NOT_DRAWN, Report
from extractor.prepare.sources import Source
from extractor.prepare.spill import Buckets, Spilled
from extractor.samples import SCHEMA, SEGMENT_KINDS

_GROUP_TOKENS = 1 << 20  # about 5 MB of ids and mask: a reader streams group by group
_GROUP_ROWS = 1024


class Merger:
    """Reads each bucket once, or twice when a recipe draws from a source and its samples must be counted first."""

    def __init__(self, buckets: Buckets, sources: list[Source], report: Report, dedupe: bool) -> None:
        self._buckets = buckets
        self._sources = sources
        self._report = report
        self._dedupe = dedupe

    def write(self, path: Path) -> int:
        """Write the samples file; the number of samples in it."""
        limits = self._draw()
        written = 0
        with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
            for group in _groups(self._kept(limits)):
                writer.write_table(self._table(group))
                written += len(group)
        return written

    def _draw(self) -> list[int] | None:
        entries = [source.entry for source in self._sources]
        if not any(entry.draws for entry in entries):
            return None
        lots = [Lots() for _ in entries]
        for sample, duplicate in self._all():
            if not duplicate:
                lots[sample.place.source].add(sample.key, sample.token_ids.size)
        return limits(entries, lots)

    def _all(self) -> Iterator[tuple[Spilled, bool]]:
        """Every sample in shuffle order, and whether it repeats the one before."""
        last = b""
        for bucket in range(self._buckets.count):
            for sample in self._buckets.sorted(bucket):
                yield sample, self._dedupe and sample.key == last
                last = sample.key

    def _kept(self, limits: list[int] | None) -> Iterator[Spilled]:
        for sample, duplicate in self._all():
            place = sample.place
            drawn = limits is None or lot(sample.key) < limits[place.source]
            flag = DUPLICATE if duplicate else KEPT if drawn else NOT_DRAWN
            tally = self._report.tallies[place.source]
            tally.mark(place.file, place.record, flag)
            tally.samples[{KEPT: "kept", DUPLICATE: "duplicate", NOT_DRAWN: "not_drawn"}[flag]] += 1
            if flag == KEPT:
                self._count(sample)
                yield sample

    def _count(self, sample: Spilled) -> None:
        tally = self._report.tallies[sample.place.source]
        tally.samples["truncated"] += sample.truncated
        tally.lengths.append(sample.token_ids.size)
        tally.tokens["total"] += sample.token_ids.size
        tally.tokens["trained"] += int(np.count_nonzero(sample.loss_mask))
        for kind, start, end in sample.segments.tolist():
            tally.tokens[SEGMENT_KINDS[kind]] += end - start

    def _table(self, group: list[Spilled]) -> pa.Table:
        columns: list[Any] = [
            pa.array([self._sample_id(sample) for sample in group], pa.string()),
            pa.array([self._sources[sample.place.source].name for sample in group], pa.string()),
            _lists([sample.token_ids for sample in group]),
            _lists([sample.loss_mask for sample in group]),
            pa.array([sample.token_ids.size for sample in group], pa.int32()),
            _segments([sample.segments for sample in group]),
            pa.array([self._origin(sample) for sample in group], SCHEMA.field("origin").type),
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)

    def _origin(self, sample: Spilled) -> dict[str, Any]:
        return {"file": self._sources[sample.place.source].files[sample.place.file].name, "record": sample.place.record}

    def _sample_id(self, sample: Spilled) -> str:
        """`source-record`, with the file's name where a source has several, the part where a record gives several."""
        source, place = self._sources[sample.place.source], sample.place
        file = f"/{source.files[place.file].name}" if len(source.files) > 1 else ""
        part = f".{place.part}" if place.parts > 1 else ""
        return f"{source.name}{file}-{place.record}{part}"


def _groups(samples: Iterator[Spilled]) -> Iterator[list[Spilled]]:
    group: list[Spilled] = []
    tokens = 0
    for sample in samples:
        group.append(sample)
        tokens += sample.token_ids.size
        if tokens >= _GROUP_TOKENS or len(group) >= _GROUP_ROWS:
            yield group
            group, tokens = [], 0
    if group:
        yield group


def _lists(arrays: list[np.ndarray]) -> pa.Array:
    return pa.ListArray.from_arrays(_offsets(arrays), pa.array(np.concatenate(arrays)))


def _segments(arrays: list[np.ndarray]) -> pa.Array:
    flat = np.concatenate(arrays)
    kinds = pa.array(SEGMENT_KINDS, pa.string()).take(pa.array(flat["kind"]))
    fields = [kinds, pa.array(np.ascontiguousarray(flat["start"])), pa.array(np.ascontiguousarray(flat["end"]))]
    return pa.ListArray.from_arrays(_offsets(arrays), pa.StructArray.from_arrays(fields, ["kind", "start", "end"]))


def _offsets(arrays: list[np.ndarray]) -> pa.Array:
    return pa.array(np.cumsum([0, *(array.size for array in arrays)]), pa.int32())
