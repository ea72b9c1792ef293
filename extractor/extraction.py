"""`extract`: from a samples file to a store, whatever was stored before."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from extractor.canary import check_canary
from extractor.config import Config
from extractor.disk import RoomWatch, require_room
from extractor.engines.job import Engine, Job, Progress
from extractor.engines.load import engine_class
from extractor.errors import EngineError
from extractor.interrupts import Stop, stop_on_interrupt
from extractor.job_setup import check_input, disk_bytes, make_job, make_manifest
from extractor.layers import resolve_layers
from extractor.manifest import Manifest
from extractor.samples import Sample, SamplesFile
from extractor.sizes import counted
from extractor.store import Store, prepare_store
from extractor.store.lock import RunLock
from extractor.store.parts import require_all_here
from extractor.summary import Summary, nothing_to_do, summarize, write_run_record


def extract(
    config: Config,
    report: Callable[[Progress, int, int], None] | None = None,
    share: tuple[int, int] = (0, 1),
) -> Summary:
    """Store the hidden states of every sample that the store does not hold yet.

    `report(progress, total_samples, total_tokens)` is called every few seconds. `share` (r, n) takes one of n equal
    parts of the samples: n processes fill one store together (see extractor.launch). Raises ExtractorError kinds;
    what is sealed by then stays, and the same call continues.
    """
    info, samples = check_input(config)
    layer_ids = resolve_layers(config.layers, info.num_layers, config.last)
    manifest = make_manifest(config, info, layer_ids, samples)
    todo = _remaining(samples, config.out, manifest) & _part(samples, *share)
    if not todo:
        return nothing_to_do(config.out, len(samples))
    job = make_job(config, info, layer_ids, todo)
    require_room(config.out, disk_bytes(job, len(todo)), config.force)
    store = prepare_store(config.out, manifest)
    with RunLock(store.path, shared=share[1] > 1), stop_on_interrupt() as stop:
        # Only now is the store this run's: another one may have made it, or filled it, in the meantime.
        todo = _remaining(samples, store.path, manifest) & todo
        if not todo:
            return nothing_to_do(config.out, len(samples))
        job = make_job(config, info, layer_ids, todo)
        _runs_folder(store.path, alone=share[1] == 1)
        engine = engine_class(config.engine)(config, int(samples.lengths.max()))
        try:
            stop.in_order()
            return _run(engine, config, job, samples, todo, stop, report)
        finally:
            engine.close()


def _remaining(samples: SamplesFile, out: Path, manifest: Manifest) -> set[str]:
    """Sample ids that the store lacks. Looks before it creates, so that a refused run leaves nothing behind."""
    if not out.exists():
        return set(samples.sample_ids)
    stored = prepare_store(out, manifest)
    require_all_here(out, "continuing the run")
    return {sample_id for sample_id in samples.sample_ids if sample_id not in stored}


def _runs_folder(store: Path, *, alone: bool) -> None:
    """Make it; `alone`, free of what earlier runs left that failed or were killed."""
    runs = store / "runs"
    runs.mkdir(exist_ok=True)
    if alone:
        for leftover in runs.glob("*.canary"):
            shutil.rmtree(leftover)
        for leftover in runs.glob("*.error"):
            leftover.unlink()


def _part(samples: SamplesFile, rank: int, num_ranks: int) -> set[str]:
    """Decided by the whole file, not by what is left: processes that start at different times agree."""
    if num_ranks == 1:
        return set(samples.sample_ids)
    # It loads Numba, which a process that only extracts does not need, and which vLLM's CPU ranks stumble over when
    # they inherit it from the script that started them (see engines.vllm.environment).
    from extractor.batching import share_out

    owners = share_out(samples.lengths, num_ranks)
    return {sample_id for sample_id, owner in zip(samples.sample_ids, owners, strict=True) if owner == rank}


def _run(
    engine: Engine,
    config: Config,
    job: Job,
    samples: SamplesFile,
    todo: set[str],
    stop: Stop,
    report: Callable[[Progress, int, int], None] | None,
) -> Summary:
    total_tokens = job.expected_bytes // job.row_bytes
    need = disk_bytes(job, len(todo))
    watch = RoomWatch(config.out)

    def tell(progress: Progress) -> None:
        watch.check(need * (total_tokens - progress.tokens) // total_tokens)
        if report is not None:
            report(progress, len(todo), total_tokens)

    tell(Progress())
    started = time.monotonic()
    ranks = engine.run(job, _only(samples, todo), tell, stop)
    seconds = time.monotonic() - started
    tell(Progress.of_ranks(ranks))
    interrupted = stop()
    canary = []
    if not interrupted:
        _require_complete(config.out, todo)
        canary = check_canary(engine, config, job, samples, todo, stop)
    already = len(samples) - len(todo)
    summary = summarize(config, job, ranks, canary, seconds=seconds, already=already, interrupted=interrupted)
    write_run_record(config, job, summary, len(samples))
    return summary


def _only(samples: SamplesFile, wanted: set[str]) -> Iterator[Sample]:
    return (sample for sample in samples if sample.sample_id in wanted)


def _require_complete(out: Path, todo: set[str]) -> None:
    stored = Store.open(out)
    missing = sorted(sample_id for sample_id in todo if sample_id not in stored)
    if missing:
        raise EngineError(
            f"the engine ended without an error, but without {counted(len(missing), 'sample')}, {missing[0]!r} for "
            "one; "
            "run the same command again; if it happens twice, please report it"
        )
