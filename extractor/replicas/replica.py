"""One engine on one node, as a Ray actor: takes leases, seals samples, reports what is sealed."""

from __future__ import annotations

import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from extractor.config import Config
from extractor.engines.job import Engine, Progress
from extractor.engines.load import engine_class
from extractor.replicas.canary import Canary
from extractor.replicas.inbox import Inbox
from extractor.replicas.messages import Delivery, Failure, NodeReport, Report, Task
from extractor.replicas.node import inspect_node
from extractor.replicas.seals import SealReader
from extractor.store import prepare_store
from extractor.store.parts import mark_as_part

_LOOK_SECONDS = 0.5  # between two looks at what is sealed


class Replica:
    """Ray calls the methods from several threads; the engine has one of its own, in which it is made and runs.

    One run of the engine lasts from a first lease until the queue is empty; a lease that comes later, because another
    replica died, starts the next run, with shards of its own.
    """

    def __init__(self) -> None:
        self._inbox = Inbox()
        self._busy = False
        self._finished = False
        self._failure: Failure | None = None
        self._stalled_seconds = 0.0  # of the runs that ended
        self._current = Progress()
        self._restarts = 0
        self._findings: list[dict[str, Any]] = []
        self._canary = Canary()
        self._runs = 0

    def inspect(self, config: Config, token: Path | None, shard_dir: str) -> NodeReport:
        """What this node has; nothing is loaded yet."""
        import ray

        return inspect_node(config, ray.get_runtime_context().get_node_id(), token, shard_dir)

    def load(self, task: Task) -> Failure | None:
        """Make the engine, which takes minutes for a large model. Returns what went wrong."""
        self._task = task
        ready = threading.Event()
        threading.Thread(target=self._work, args=(ready,), name="engine", daemon=True).start()
        ready.wait()
        return self._failure

    def exchange(self, delivery: Delivery, wait_seconds: float) -> Report:
        """Take the driver's answer to the last report; return the next one as soon as there is a need, or after
        `wait_seconds`. Called again only after it has returned."""
        self._accept(delivery)
        deadline = time.monotonic() + wait_seconds
        with self._inbox.changed:
            while not self._must_speak() and (left := deadline - time.monotonic()) > 0:
                self._inbox.changed.wait(min(left, _LOOK_SECONDS))
        return self._report()

    def _accept(self, delivery: Delivery) -> None:
        self._canary.wanted = self._canary.wanted or delivery.canary
        if delivery.lease:
            self._inbox.add(delivery.lease)
        if delivery.nothing_more:
            self._inbox.nothing_more()
        if delivery.stop:
            self._inbox.stop()

    def _must_speak(self) -> bool:
        return self._inbox.hungry or self._finished or self._failure is not None

    def _report(self) -> Report:
        # The flags first: what they say was sealed before is then found by the look at the shards.
        finished, failure = self._finished, self._failure
        idle = self._inbox.idle and not self._busy
        findings, self._findings = self._findings, []
        return Report(
            sealed=self._seals.new(),
            hungry=self._inbox.hungry,
            idle=idle,
            finished=finished,
            failure=failure,
            findings=findings,
            stalled_seconds=self._stalled_seconds + self._current.stalled_seconds,
            restarts=self._restarts,
        )

    def _work(self, ready: threading.Event) -> None:
        try:
            engine = self._open()
            try:
                ready.set()
                while self._inbox.wait():
                    self._run_once(engine)
                self._findings += self._canary.check(engine, self._task)
            finally:
                engine.close()
        except BaseException as error:  # noqa: BLE001 - the driver decides
            self._failure = Failure.of(error, traceback.format_exc())
        with self._inbox.changed:
            self._busy = False
            self._finished = True
            self._inbox.changed.notify_all()
        ready.set()

    def _open(self) -> Engine:
        task = self._task
        if task.first_shard is not None:
            prepare_store(task.job.store, task.manifest)
            mark_as_part(task.job.store, task.first_shard)
        (task.job.store / "runs").mkdir(exist_ok=True)
        self._canary.size = task.config.canary
        self._seals = SealReader(task.job.store, task.job.run_id)
        return engine_class(task.config.engine)(task.config, task.longest)

    def _run_once(self, engine: Engine) -> None:
        self._busy = True
        self._runs += 1
        job = replace(self._task.job, run_id=f"{self._task.job.run_id}-{self._runs}")
        samples = self._canary.watched(self._inbox.samples())
        ranks = engine.run(job, samples, self._note, lambda: self._inbox.stopped)
        self._stalled_seconds += Progress.of_ranks(ranks).stalled_seconds
        self._current = Progress()
        self._restarts += sum(rank["restarts"] for rank in ranks)
        self._findings += [finding for rank in ranks for finding in rank["findings"]]
        with self._inbox.changed:
            self._busy = False
            self._inbox.changed.notify_all()

    def _note(self, progress: Progress) -> None:
        self._current = progress
