"""The driver's loop: one call under way for each replica, and what follows when it returns or fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from extractor.errors import ClusterError, EngineError, InputError
from extractor.replicas.cluster import release, too_little_room
from extractor.replicas.launch import Launcher, short
from extractor.replicas.member import Member, State
from extractor.replicas.messages import Delivery, Failure, NodeReport, Report
from extractor.replicas.work import Work

_REPORT_SECONDS = 1.0
_STOP_SECONDS = 120.0  # for the last step, the last commit and closing the engine
_MOST_DEATHS = 3  # in a row, without a seal in between


class Fleet:
    """All replicas of a run. What fails, fails here: a node, a process, an engine, a disk, or silence."""

    def __init__(self, work: Work, launcher: Launcher) -> None:
        self.members = [Member(number) for number in range(launcher.options.replicas)]
        self.deaths = 0
        self._work, self._launcher = work, launcher
        self._errors: set[str] = set()
        self._next: dict[State, Callable[[Member, Any], None]] = {
            State.PLACING: lambda member, _: launcher.inspect(member),
            State.INSPECTING: self._inspected,
            State.LOADING: self._loaded,
            State.WORKING: self._reported,
        }

    def run(self, stop: Callable[[], bool], tell: Callable[[], None]) -> None:
        """Until every sample is sealed or `stop`. Raises ClusterError or EngineError when nobody is left to do it."""
        try:
            self._launcher.start(self.members)
            while not self._work.queue.done and not stop():
                self._turn()
                tell()
            self._finish()
        finally:
            for member in self.members:
                release(member.group, member.actor)
            self._launcher.places.close()

    def _turn(self) -> None:
        waiting = {member.pending: member for member in self.members if member.pending is not None}
        if not waiting:
            raise EngineError(f"no replica is left: {self._reasons()}; what is sealed is safe; run the command again")
        for ref in _ready(list(waiting)):
            self._advance(waiting[ref], ref)
        for member in self.members:
            self._check_progress(member)
        self._check_room()

    def _advance(self, member: Member, ref: Any) -> None:
        try:
            value = ray.get(ref)
        except RayError as error:
            self._lost(member, short(error))
            return
        self._next[member.state](member, value)

    def _inspected(self, member: Member, report: NodeReport) -> None:
        """Of a later life: a node that differs is left out, the run goes on."""
        try:
            self._launcher.load(member, report)
        except ClusterError as error:
            self._retire(member, str(error))

    def _loaded(self, member: Member, failure: Failure | None) -> None:
        if failure is not None:
            self._failed(member, failure)
            return
        self._log("replica-ready", member, seconds=round(time.monotonic() - member.since, 1))
        member.start_working()
        self._exchange(member, Delivery())

    def _reported(self, member: Member, report: Report) -> None:
        self._note(member, report)
        if report.failure is not None:
            self._failed(member, report.failure)
        else:
            self._exchange(member, self._delivery(member, report))

    def _note(self, member: Member, report: Report) -> None:
        self._work.note(member, report.sealed)
        self._work.found(report.findings)
        member.stalled_seconds, member.restarts = report.stalled_seconds, report.restarts

    def _delivery(self, member: Member, report: Report) -> Delivery:
        if not (report.hungry or report.idle):
            return Delivery()
        lease = self._work.lease(member, self.members)
        if lease:
            self._log("lease", member, samples=len(lease), tokens=sum(sample.token_ids.size for sample in lease))
        return Delivery(lease=lease, nothing_more=report.hungry and not lease)

    def _exchange(self, member: Member, delivery: Delivery) -> None:
        member.call(State.WORKING, member.actor.exchange.remote(delivery, _REPORT_SECONDS))

    def _check_progress(self, member: Member) -> None:
        silent = time.monotonic() - member.last_news
        late = member.state is State.WORKING and silent > self._launcher.options.stall_timeout
        if late and self._work.queue.held(member.holder):
            self._lost(member, f"stuck: no sample sealed for {silent:.0f} s")

    def _check_room(self) -> None:
        """Nobody works, and those that wait for a place wait in vain."""
        up = [member for member in self.members if member.is_up]
        if up and all(member.state is State.PLACING for member in up):
            waited = min(time.monotonic() - member.since for member in up)
            if waited > self._launcher.options.placement_timeout:
                raise too_little_room(len(up), 0, self._launcher.share)

    def _failed(self, member: Member, failure: Failure) -> None:
        """The engine stopped by itself. A full disk is this node's matter; the same error twice is the job's."""
        if failure.kind == "job":
            raise InputError(failure.message)
        if failure.kind == "disk":
            self._retire(member, failure.message)
        elif failure.message in self._errors:
            raise EngineError(f"two engines stopped for the same reason: {failure.message}")
        else:
            self._errors.add(failure.message)
            self._lost(member, failure.message)

    def _lost(self, member: Member, reason: str) -> None:
        """The process is gone, or must go: its unsealed samples go back, and it starts anew where there is room."""
        self._end(member, "replica-lost", reason)
        self.deaths += 1
        member.failures += 1
        if member.failures < _MOST_DEATHS:
            self._launcher.place(member)
            return
        self._log("replica-retired", member, reason=f"{member.failures} deaths without a sealed sample")
        member.state = State.RETIRED

    def _retire(self, member: Member, reason: str) -> None:
        self._end(member, "replica-retired", reason)
        member.state = State.RETIRED

    def _end(self, member: Member, event: str, reason: str) -> None:
        """What it sealed stays, whether it was reported or not; the rest goes back."""
        release(member.group, member.actor)
        member.reason = reason
        if member.state is State.WORKING:
            self._work.note(member, self._launcher.places.sealed(member))
        returned = self._work.queue.give_back(member.holder)
        self._log(event, member, reason=reason, returned_samples=returned)
        member.end_life()

    def _finish(self) -> None:
        """Let engines close, so that shards end where their data ends."""
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline:
            waiting = {m.pending: m for m in self.members if m.state is State.WORKING}
            if not waiting:
                return
            for ref in _ready(list(waiting)):
                self._finish_one(waiting[ref], ref)

    def _finish_one(self, member: Member, ref: Any) -> None:
        try:
            report: Report = ray.get(ref)
        except RayError as error:
            self._retire(member, short(error))
            return
        self._note(member, report)
        if report.failure is not None:
            self._retire(member, report.failure.message)
            return
        if not report.finished:
            self._exchange(member, Delivery(stop=True, canary=self._work.queue.done))
            return
        self._log("replica-finished", member)
        release(member.group, member.actor)
        member.end_life()
        member.state = State.FINISHED

    def _reasons(self) -> str:
        return "; ".join(f"replica {member.number}: {member.reason}" for member in self.members)

    def _log(self, event: str, member: Member, **fields: Any) -> None:
        self._launcher.events.write(event, replica=member.number, life=member.life, host=member.host, **fields)


def _ready(refs: list[Any]) -> list[Any]:
    """All calls that have returned; waits for the first, but not for long."""
    first, _ = ray.wait(refs, timeout=_REPORT_SECONDS)
    if not first:
        return []
    more, _ = ray.wait(refs, num_returns=len(refs), timeout=0.0)
    return list(more)
