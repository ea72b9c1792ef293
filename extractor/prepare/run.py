"""`prepare`: read, tokenize, spill, merge, report. Memory stays bounded whatever the size of the data."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from extractor.errors import DiskFullError, ExtractorError, InputError
from extractor.output import make_folder, replace_all, write_error
from extractor.prepare.containers import RecordFile
from extractor.prepare.jsontext import Raw
from extractor.prepare.merge import Merger
from extractor.prepare.options import PrepareOptions
from extractor.prepare.progress import Progress
from extractor.prepare.report import Report, write_json
from extractor.prepare.sources import Source, find_sources
from extractor.prepare.spill import BUCKET_BYTES, Buckets
from extractor.prepare.tokens import Tokenizer, load_tokenizer
from extractor.prepare.work import Chunk, Outcome, Worker, run_chunk, start_worker

SAMPLES, REPORT, REJECTS = "samples.parquet", "report.json", "rejects.jsonl"
FAILED_REJECTS = "failed-rejects.jsonl"  # of a run that left no sample: the other files are the last good run's
_CHUNK_BYTES = 1 << 20
_CHUNK_RECORDS = 512
_SMALL_BYTES = 4 << 20  # below this, starting processes takes longer than the work
_SPILLED_PER_BYTE = 1.5  # spilled bytes per input byte: 5 bytes a token of 3 to 4 characters


def prepare(options: PrepareOptions) -> dict[str, Any]:
    """Write samples.parquet, report.json and, where needed, rejects.jsonl into `options.out`; returns the report.

    A run that fails or is interrupted leaves the files of an earlier one as they were.

    Raises InputError for unusable sources, tokenizer or folder, and when no sample is left; StoreError when `out` can't
    be written, DiskFullError when it has no room."""
    try:
        return _prepare(options)
    except OSError as error:
        raise _file_error(error, options.out) from error


def _file_error(error: OSError, out: Path) -> ExtractorError:
    """Errors that name a file outside of `out` come from reading."""
    name = error.filename
    if isinstance(name, (str, bytes)) and not Path(os.fsdecode(name)).absolute().is_relative_to(out.absolute()):
        return InputError(f"{os.fsdecode(name)} can't be read ({error.strerror}); check the file and its permissions")
    failed = write_error(error, out)
    if isinstance(failed, DiskFullError):
        return DiskFullError(
            f"no room in {out}: about 1.5 bytes are needed for each byte of input; free some, or pass another --out; "
            "nothing was written"
        )
    return failed


def _prepare(options: PrepareOptions) -> dict[str, Any]:
    sources = find_sources(options.data)
    tokenizer = load_tokenizer(options.tokenizer, options.chat_template, options.trust_remote_code)
    make_folder(options.out)
    with tempfile.TemporaryDirectory(prefix=".prepare-", dir=options.out) as name:
        scratch = Path(name)
        with (scratch / REJECTS).open("w", encoding="utf-8") as rejects:
            report = Report(sources, rejects)
            buckets = _spill(options, sources, tokenizer, report, scratch)
        written = Merger(buckets, sources, report, options.dedupe).write(scratch / SAMPLES)
        summary = report.summary(_settings(options, sources))
        write_json(scratch / REPORT, summary)
        if not (scratch / REJECTS).stat().st_size:
            (scratch / REJECTS).unlink()
        if not written:
            if (scratch / REJECTS).exists():
                os.replace(scratch / REJECTS, scratch / FAILED_REJECTS)
            replace_all(scratch, options.out, (FAILED_REJECTS,))
            raise InputError(_nothing_left(summary, options.out))
        replace_all(scratch, options.out, (SAMPLES, REJECTS, REPORT, FAILED_REJECTS))
    return summary


def _spill(
    options: PrepareOptions, sources: list[Source], tokenizer: Tokenizer, report: Report, scratch: Path
) -> Buckets:
    """Tokenize all records into buckets."""
    size = sum(file.path.stat().st_size for source in sources for file in source.files)
    buckets = Buckets(scratch, _bucket_count(sources, size))
    workers = _worker_count(options, size)
    with Progress(options.progress, size) as progress:
        chunks = _chunks(sources, options.max_record_bytes, progress)
        for chunk, outcome in _outcomes(chunks, options, buckets.count, workers, tokenizer):
            report.add(chunk.source, chunk.file, len(chunk.records), outcome)
            buckets.append(outcome.packed)
            progress.wrote(sum(map(len, outcome.packed.values())))
    buckets.close()
    return buckets


def _chunks(sources: list[Source], max_bytes: int, progress: Progress) -> Iterator[Chunk]:
    for number, source in enumerate(sources):
        for index, file in enumerate(source.files):
            records = RecordFile(file.path, max_bytes)
            where = f"{source.name}/{file.name}"
            for part in _parts(records):
                yield Chunk(number, index, source.entry, where, part)
                progress.reached(records.position_bytes)
            progress.finished(records.size_bytes)


def _parts(records: RecordFile) -> Iterator[list[Raw]]:
    part: list[Raw] = []
    size = 0
    for raw in records:
        part.append(raw)
        size += raw.size
        if size >= _CHUNK_BYTES or len(part) >= _CHUNK_RECORDS:
            yield part
            part, size = [], 0
    if part:
        yield part


def _outcomes(
    chunks: Iterator[Chunk], options: PrepareOptions, buckets: int, workers: int, tokenizer: Tokenizer
) -> Iterator[tuple[Chunk, Outcome]]:
    """Outcomes in the order of the chunks; with one worker, in this process."""
    if workers == 1:
        worker = Worker(options, buckets, tokenizer)
        yield from ((chunk, worker.run(chunk)) for chunk in chunks)
        return
    # Not fork: the caller may hold threads or a CUDA context.
    context = get_context("forkserver")
    context.set_forkserver_preload(["extractor.prepare.work", "transformers.models.auto.tokenization_auto"])
    with ProcessPoolExecutor(workers, context, start_worker, (options, buckets)) as pool:
        try:
            yield from _in_order(chunks, pool, 2 * workers)
        except BrokenProcessPool as error:
            raise ExtractorError(
                "a worker process died, most likely killed for want of memory; pass fewer --workers"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _in_order(chunks: Iterator[Chunk], pool: ProcessPoolExecutor, ahead: int) -> Iterator[tuple[Chunk, Outcome]]:
    """At most `ahead` chunks are under way, so a slow consumer holds back the reader."""
    waiting: deque[tuple[Chunk, Future[Outcome]]] = deque()
    for chunk in chunks:
        waiting.append((chunk, pool.submit(run_chunk, chunk)))
        if len(waiting) > ahead:
            first, future = waiting.popleft()
            yield first, future.result()
    while waiting:
        first, future = waiting.popleft()
        yield first, future.result()


def _worker_count(options: PrepareOptions, size: int) -> int:
    if options.workers:
        return options.workers
    return 1 if size < _SMALL_BYTES else len(os.sched_getaffinity(0))


def _bucket_count(sources: list[Source], size: int) -> int:
    packed = any(
        file.path.suffix in (".gz", ".zst", ".zstd", ".parquet") for source in sources for file in source.files
    )
    spilled = size * _SPILLED_PER_BYTE * (6 if packed else 1)
    return min(512, 1 + int(spilled // BUCKET_BYTES))


def _settings(options: PrepareOptions, sources: list[Source]) -> dict[str, Any]:
    """What the samples depend on, and where the sources lie."""
    names = ("max_length", "overlong", "seed", "train_on", "turns", "lacking", "dedupe", "data_format")
    settings = {name: value for name, value in asdict(options).items() if name in names}
    return {
        **settings,
        "tokenizer": str(options.tokenizer),
        "files": {source.name: [str(file.path) for file in source.files] for source in sources},
    }


def _nothing_left(summary: dict[str, Any], out: Path) -> str:
    records = summary["total"]["records"]
    reasons = {**records["rejected"], **records["dropped"]}
    if not reasons:
        files = ", ".join(file for of_source in summary["settings"]["files"].values() for file in of_source)
        return f"no sample is left: there are no records in {files}; pass files that hold some"
    listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"no sample is left of {records['read']} records ({listed}); each is listed in {out / FAILED_REJECTS}"
