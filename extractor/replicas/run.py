"""`extract` over many nodes: the same store, filled by replicas on a Ray cluster."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from extractor.config import Config
from extractor.disk import require_room
from extractor.errors import ClusterError, EngineError
from extractor.interrupts import stop_on_interrupt
from extractor.job_setup import check_input, make_job, make_manifest
from extractor.layers import resolve_layers
from extractor.manifest import Manifest
from extractor.model_info import ModelInfo
from extractor.replicas.options import ReplicaOptions
from extractor.samples import SamplesFile
from extractor.store import prepare_store
from extractor.store.parts import elsewhere
from extractor.summary import Summary, nothing_to_do, summarize, write_run_record

if TYPE_CHECKING:
    from extractor.engines.job import Job
    from extractor.replicas.cluster import Share
    from extractor.replicas.events import EventLog
    from extractor.replicas.fleet import Fleet
    from extractor.replicas.status import Status
    from extractor.replicas.work import Work

Show = Callable[["Status"], None]


def extract_on_replicas(config: Config, options: ReplicaOptions, show: Show | None = None) -> Summary:
    """As `extract`, by `options.replicas` engines on the cluster; `show` is called about once a second.

    Raises ClusterError for a cluster without room or with nodes that differ, and what `extract` raises. The driver
    keeps nothing that the shards do not tell: killed at any moment, the same call continues.
    """
    require_ray()
    from extractor.replicas.cluster import Share, connected

    with connected(options.ray_address):
        share = Share.of(options, config.tp)
        info, samples = check_input(config)
        config = _same_everywhere(config, info, share)
        layer_ids = resolve_layers(config.layers, info.num_layers, config.last)
        todo = _remaining(config, options, make_manifest(config, info, layer_ids, samples), samples)
        if not todo:
            return nothing_to_do(config.out, len(samples))
        job = make_job(config, info, layer_ids, todo)
        if not options.shard_dir:
            require_room(config.out, job.expected_bytes, config.force)
        return _run(config, options, share, job, samples, todo, show)


def require_ray() -> None:
    """Raise ClusterError when Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ClusterError(
            '--replicas needs Ray, which is not installed; pip install "hidden-state-extractor[ray]" on every node'
        )


def _same_everywhere(config: Config, info: ModelInfo, share: Share) -> Config:
    """Absolute paths, and a dtype that does not depend on whether the driver's own machine has a GPU."""
    dtype = config.compute_dtype
    if dtype == "auto":
        dtype = info.dtype if share.gpus else "float32"
    return replace(
        config,
        samples=config.samples.absolute(),
        model=config.model.absolute(),
        out=config.out.absolute(),
        compute_dtype=dtype,
    )


def _remaining(config: Config, options: ReplicaOptions, manifest: Manifest, samples: SamplesFile) -> set[str]:
    from extractor.replicas.places import stored_ids

    prepare_store(config.out, manifest)
    (config.out / "runs").mkdir(exist_ok=True)
    stored = stored_ids(config.out, skip_lost=options.recompute_lost)
    return {sample_id for sample_id in samples.sample_ids if sample_id not in stored}


def _run(
    config: Config,
    options: ReplicaOptions,
    share: Share,
    job: Job,
    samples: SamplesFile,
    todo: set[str],
    show: Show | None,
) -> Summary:
    from extractor.replicas.events import EventLog
    from extractor.replicas.status import Status

    work = _work(samples, todo, options)
    with EventLog(config.out / "runs" / f"{job.run_id}.events.jsonl") as events:
        fleet = _fleet(config, options, share, job, samples, work, events)
        tell = _teller(fleet, work, job.row_bytes, show)
        started = time.monotonic()
        events.write("start", replicas=options.replicas, samples=len(todo), tokens=work.queue.total_tokens)
        with stop_on_interrupt() as stop:
            fleet.run(stop, tell)
            interrupted = stop() and not work.queue.done
        seconds = Status.of(fleet, work.queue, job.row_bytes).seconds or time.monotonic() - started
    return _summarize(config, job, fleet, work, todo, seconds, len(samples) - len(todo), interrupted)


def _work(samples: SamplesFile, todo: set[str], options: ReplicaOptions) -> Work:
    from extractor.replicas.leases import LeaseLimits, LeaseQueue
    from extractor.replicas.source import SampleSource
    from extractor.replicas.work import Work

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
    from extractor.replicas.fleet import Fleet
    from extractor.replicas.launch import Launcher
    from extractor.replicas.messages import Task
    from extractor.replicas.node import versions
    from extractor.replicas.places import NodeStores, SharedStore

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


def _teller(fleet: Fleet, work: Work, row_bytes: int, show: Show | None) -> Callable[[], None]:
    from extractor.replicas.metrics import Metrics
    from extractor.replicas.status import Status

    metrics = Metrics()

    def tell() -> None:
        status = Status.of(fleet, work.queue, row_bytes)
        metrics.update(status)
        if show is not None:
            show(status)

    return tell


def _summarize(
    config: Config, job: Job, fleet: Fleet, work: Work, todo: set[str], seconds: float, already: int, interrupted: bool
) -> Summary:
    from extractor.replicas.places import stored_ids
    from extractor.replicas.summary import ReplicaSummary, ReplicaTotals

    ranks = [
        {
            "samples": m.samples,
            "tokens": m.tokens,
            "bytes": m.tokens * job.row_bytes,
            "stalled_seconds": m.stalled_seconds,
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
            f"{unconfirmed} samples were reported as sealed but are not in {config.out}; run the same command again; "
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
    write_run_record(config, job, summary)
    return summary
