"""One run on a connected cluster: queue, fleet and logs put together, and the summary."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from ray.exceptions import RayError

from extractor.config import Config
from extractor.engines.job import Job
from extractor.errors import ClusterError, EngineError
from extractor.interrupts import stop_on_interrupt
from extractor.manifest import Manifest
from extractor.replicas.cluster import Share
from extractor.replicas.events import EventLog
from extractor.replicas.fleet import Fleet
from extractor.replicas.launch import Launcher, short
from extractor.replicas.leases import LeaseLimits, LeaseQueue
from extractor.replicas.messages import Task
from extractor.replicas.metrics import Metrics
from extractor.replicas.node import versions
from extractor.replicas.options import ReplicaOptions
from extractor.replicas.places import NodeStores, SharedStore, stored_ids
from extractor.replicas.source import SampleSource
from extractor.replicas.status import Status
from extractor.replicas.summary import ReplicaSummary, ReplicaTotals
from extractor.replicas.work import Work
from extractor.samples import SamplesFile
from extractor.sizes import counted
from extractor.store.parts import elsewhere
from extractor.summary import summarize, write_run_record


def run_job(
    config: Config,
    options: ReplicaOptions,
    share: Share,
    job: Job,
    samples: SamplesFile,
    todo: set[str],
    show: Callable[[Status], None] | None,
) -> ReplicaSummary:
    """Do `todo` of `samples` on a cluster that is connected. Raises ClusterError, EngineError or InputError."""
    work = _work(samples, todo, options)
    with EventLog(config.out / "runs" / f"{job.run_id}.events.jsonl") as events:
        fleet = _fleet(config, options, share, job, samples, work, events)
        tell = _teller(fleet, work, job.row_bytes, show)
        started = time.monotonic()
        events.write("start", replicas=options.replicas, samples=len(todo), tokens=work.queue.total_tokens)
        with stop_on_interrupt() as stop:
            stop.in_order()
            _run(fleet, stop, tell)
            interrupted = stop() and not work.queue.done
        seconds = Status.of(fleet, work.queue, job.row_bytes).seconds or time.monotonic() - started
    return _summarize(config, job, fleet, work, todo, seconds, len(samples) - len(todo), interrupted)


def _run(fleet: Fleet, stop: Callable[[], bool], tell: Callable[[], None]) -> None:
    try:
        fleet.run(stop, tell)
    except RayError as error:
        raise ClusterError(
            f"the Ray cluster stopped answering: {short(error)}; what is sealed is safe; run the same command again"
        ) from error


def _work(samples: SamplesFile, todo: set[str], options: ReplicaOptions) -> Work:
    rows = np.array([row for row, name in enumerate(samples.sample_ids) if name in todo], np.int64)
    limits = LeaseLimits(max_tokens=options.lease_tokens)
    queue = LeaseQueue(rows, samples.lengths[rows], limits)
    return Work(queue, SampleSource(samples), {samples.sample_ids[row]: row for row in rows.tolist()})


def _fleet(
    config: Config,
    options: ReplicaOptions,
    share: Share,
    job: Job,
    samples: SamplesFile,
    work: Work,
    events: EventLog,
) -> Fleet:
    task = Task(
        config=config,
        job=job,
        manifest=Manifest.load(config.out),
        longest=int(samples.lengths.max()),
    )
    launcher = Launcher(
        task=task,
        versions=versions(config),
        options=options,
        share=share,
        places=NodeStores(config.out, events) if options.shard_dir else SharedStore(config.out),
        events=events,
    )
    return Fleet(work, launcher)


def _teller(fleet: Fleet, work: Work, row_bytes: int, show: Callable[[Status], None] | None) -> Callable[[], None]:
    metrics = Metrics()

    def tell() -> None:
        status = Status.of(fleet, work.queue, row_bytes)
        metrics.update(status)
        if show is not None:
            show(status)

    return tell


def _summarize(
    config: Config, job: Job, fleet: Fleet, work: Work, todo: set[str], seconds: float, already: int, interrupted: bool
) -> ReplicaSummary:
    ranks = [
        {
            "samples": m.samples,
            "tokens": m.tokens,
            "bytes": m.tokens * job.row_bytes,
            "stalled_seconds": m.stalled_seconds,
            "warm_up_tokens": 0,  # a replica that dies and lives again warms up at any time of the run
            "warm_up_seconds": 0.0,
            "restarts": m.restarts,
            "findings": [],
        }
        for m in fleet.members
    ]
    base = summarize(config, job, ranks, work.findings, seconds=seconds, already=already, interrupted=interrupted)
    unconfirmed = 0 if interrupted else len(todo - stored_ids(config.out, skip_lost=True))
    away = elsewhere(config.out)
    if unconfirmed and not away:
        raise EngineError(
            f"reported as sealed, but not in {config.out}: {counted(unconfirmed, 'sample')}; run the same command "
            "again; "
            "if it happens twice, please report it"
        )
    summary = ReplicaSummary.extend(
        base,
        replicas=tuple(ReplicaTotals.of(member) for member in fleet.members),
        deaths=fleet.deaths,
        leases_returned=work.queue.returned,
        elsewhere=tuple(str(part) for part in away),
        unconfirmed=unconfirmed,
        events_file=job.store / "runs" / f"{job.run_id}.events.jsonl",
    )
    write_run_record(config, job, summary, already + len(todo))
    return summary
