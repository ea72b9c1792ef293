"""What the driver and its replicas tell each other. Plain data, pickled by Ray."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from extractor.config import Config
from extractor.engines.job import Job
from extractor.errors import DiskFullError, ExtractorError, InputError, StoreError, UsageError
from extractor.manifest import Manifest
from extractor.replicas.seals import SealedSample
from extractor.samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a replica needs to start. `job.run_id` is the replica's own, `job.store` where its shards go. `first_shard`
    is None in a store that all nodes share, else the folder is a part of its own."""

    config: Config
    job: Job
    manifest: Manifest
    longest: int
    first_shard: int | None = None

    def of(self, run_id: str, store: Path, first_shard: int | None) -> Task:
        """The same for one life of a replica."""
        return replace(self, job=replace(self.job, run_id=run_id, store=store), first_shard=first_shard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The driver's answer to a report: a lease, or word that there is none for now, or the order to stop, with `canary`
    after a few samples have gone through the engine once more."""

    lease: tuple[Sample, ...] = ()
    nothing_more: bool = False
    stop: bool = False
    canary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a replica's engine stopped. `kind`: disk (its disk), job (the same everywhere), engine (it may be the node),
    bug (not one of our errors; the message is a traceback)."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: BaseException, trace: str) -> Failure:
        if isinstance(error, DiskFullError):
            return cls(kind="disk", message=str(error))
        if isinstance(error, (UsageError, InputError)):
            return cls(kind="job", message=str(error))
        if isinstance(error, StoreError):
            return cls(kind="disk", message=str(error))
        return cls(kind="engine" if isinstance(error, ExtractorError) else "bug", message=str(error) or trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """News of a replica since its last report. `hungry`: give me the next lease; `idle`: all that I was given is done;
    `finished`: the engine is closed. `findings`: of the detectors and the canary, told once, when a run of the engine
    ends. `stalled_seconds` and `restarts` (of preempted samples) are totals."""

    sealed: list[SealedSample] = field(default_factory=list)
    hungry: bool = False
    idle: bool = False
    finished: bool = False
    failure: Failure | None = None
    findings: list[dict[str, Any]] = field(default_factory=list)
    stalled_seconds: float = 0.0
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A node as its replica finds it. `clock` is seconds since the epoch; `problem` is why it can't take part."""

    host: str
    node_id: str
    pid: int
    clock: float
    versions: dict[str, str]
    shard_dir: Path | None
    sees_token: bool
    problem: str | None
