"""Checks that a store's bytes are what was sealed: structure, every length, every checksum, every count."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from extractor.completeness import Completeness, completeness
from extractor.errors import ExtractorError, UsageError
from extractor.store import Store
from extractor.store.layout import shards
from extractor.store.lock import live_writers
from extractor.store.sample import StoredSample
from extractor.store.sample_check import check_sample
from extractor.store.shard_file import ShardFile
from extractor.store.structure import walking
from extractor.store.totals import ValueTotals

QUICK_SAMPLES = 64  # whose tiles are read by a quick check
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong. `sample_id` and `seal_offset` are None when it concerns the whole shard."""

    shard: str
    sample_id: str | None = None
    seal_offset: int | None = None
    message: str


@dataclass(slots=True, kw_only=True)
class IntegrityReport:
    """What was looked at. `checked_bytes` are stored bytes that were read and compared with their checksums; `values`
    are counts of the sound samples."""

    samples: int = 0
    tokens: int = 0
    checked_samples: int = 0
    checked_bytes: int = 0
    seconds: float = 0.0
    values: ValueTotals = field(default_factory=ValueTotals)
    completeness: Completeness
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings


def check_store(
    path: Path | str, *, quick: bool = False, workers: int = 4, progress: Progress | None = None
) -> IntegrityReport:
    """Check every shard and sample of the store at `path`; `quick` reads the tiles of QUICK_SAMPLES samples only.

    `progress(done, total)` is told bytes, of the tiles to read and of the files whose trees are walked. Raises
    StoreError when `path` is no store at all, or a file's check can't be made; everything else that is wrong is a
    finding. Raises UsageError for no workers.
    """
    if workers < 1:
        raise UsageError(f"{workers} workers can't check anything; give at least 1")
    start = time.perf_counter()
    store = Store.quietly(path, check=True)
    report = IntegrityReport(
        samples=len(store),
        tokens=int(store.lengths.sum()),
        completeness=completeness(store),
    )
    report.findings += [Finding(shard=name, message=error.problem) for name, error in store.problems.items()]
    rows = _rows_to_read(len(store)) if quick else None
    files = _files_at_rest(store)
    done = _Done(progress, _tile_bytes(store, rows) + sum(size for _, size in files))
    with walking([file for file, _ in files], workers) as walks:
        _check_samples(store, rows, workers, report, done)
        for walk in as_completed(walks):
            file, size = files[walks[walk]]
            report.findings += _structure_findings(file.path.name, walk.result())
            done.add(size)
    left = {folder.name for folder in shards(store.path)}  # without what a compact has removed meanwhile
    report.findings = [finding for finding in report.findings if finding.shard in left]
    report.findings.sort(key=lambda finding: finding.seal_offset is not None)  # whole shards first
    report.seconds = time.perf_counter() - start
    return report


class _Done:
    """Bytes looked at so far, of tiles and of trees, told to whoever asked for `progress`."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress or (lambda *_: None)
        self._total = total
        self._bytes = 0

    def add(self, nbytes: int) -> None:
        self._bytes += nbytes
        self._progress(self._bytes, self._total)


def _files_at_rest(store: Store) -> list[tuple[ShardFile, int]]:
    """The listed shards' files and their bytes, but not where a run is writing: the tree changes under a walk."""
    files = [(store.file(shard.name), shard.file_bytes) for shard in store.shards]
    written = {folder for folder in {file.path.parent for file, _ in files} if live_writers(folder)}
    return [(file, size) for file, size in files if file.path.parent not in written]


def _structure_findings(shard: str, errors: list[str]) -> list[Finding]:
    if not errors:
        return []
    more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
    return [Finding(shard=shard, message=errors[0] + more)]


def _rows_to_read(count: int) -> set[int]:
    """The same rows each time, so that a finding can be looked at again."""
    return set(random.Random(0).sample(range(count), min(count, QUICK_SAMPLES)))


def _tile_bytes(store: Store, rows: set[int] | None) -> int:
    return int((store.stored_bytes if rows is None else store.stored_bytes[list(rows)]).sum())


def _check_samples(
    store: Store, read_tiles: set[int] | None, workers: int, report: IntegrityReport, done: _Done
) -> None:
    def reads(row: int) -> bool:
        return read_tiles is None or row in read_tiles

    def check(row: int) -> StoredSample:
        return check_sample(store, row, tiles=reads(row))

    with ThreadPoolExecutor(workers, "verify") as pool:
        jobs = ((row, pool.submit(check, row)) for row in range(len(store)))
        for row, job in _bounded(jobs, 4 * workers):
            try:
                sample = job.result()
                report.checked_bytes += sample.seal.stored_bytes if reads(row) else 0
                report.checked_samples += 1
                report.values.add(sample)
            except ExtractorError as error:
                report.findings.append(_finding(store, row, error))
            done.add(store.listed(row)[2] if reads(row) else 0)


def _bounded(
    jobs: Iterator[tuple[int, Future[StoredSample]]], ahead: int
) -> Iterator[tuple[int, Future[StoredSample]]]:
    """Start at most `ahead` jobs before the oldest are taken: a million queued futures would be gigabytes."""
    running = {job: row for row, job in islice(jobs, ahead)}
    while running:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for job in done:
            yield running.pop(job), job
        running.update((job, row) for row, job in islice(jobs, len(done)))


def _finding(store: Store, row: int, error: ExtractorError) -> Finding:
    shard, offset = store.place(row)
    return Finding(shard=shard, sample_id=store.id_at(row), seal_offset=offset, message=error.problem)
