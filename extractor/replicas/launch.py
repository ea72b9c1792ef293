"""From an empty place to a working replica: room, inspection, engine."""

from __future__ import annotations

import time
from dataclasses import dataclass

import ray
from ray.exceptions import RayError

from extractor.errors import ClusterError
from extractor.replicas.cluster import Share, too_little_room
from extractor.replicas.events import EventLog
from extractor.replicas.member import Member, State
from extractor.replicas.messages import NodeReport, Task
from extractor.replicas.node import check_node
from extractor.replicas.options import ReplicaOptions
from extractor.replicas.places import Places

_INSPECT_SECONDS = 300.0


@dataclass(slots=True, kw_only=True)
class Launcher:
    """Each step makes the member's next call. `task` lacks what differs between replicas; `versions` are the driver's,
    which every node must have as well."""

    task: Task
    versions: dict[str, str]
    options: ReplicaOptions
    share: Share
    places: Places
    events: EventLog

    def start(self, members: list[Member]) -> None:
        """All find room and all nodes agree before any engine loads. Raises ClusterError."""
        for member in members:
            self.place(member)
        refs = [member.pending for member in members]
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=self.options.placement_timeout)
        if len(ready) < len(refs):
            raise too_little_room(len(refs), len(ready), self.share)
        for member in members:
            self.inspect(member)
        reports = [self._report(member) for member in members]
        for member, report in zip(members, reports, strict=True):
            self.load(member, report)

    def place(self, member: Member) -> None:
        member.run_id = f"{self.task.job.run_id}-r{member.number}.{member.life}"
        member.group = self.share.place(member.run_id)
        member.call(State.PLACING, member.group.ready())

    def inspect(self, member: Member) -> None:
        member.actor = self.share.start(member.group)
        call = member.actor.inspect.remote(self.task.config, self.places.token, self.options.shard_dir)
        member.call(State.INSPECTING, call)

    def load(self, member: Member, report: NodeReport) -> None:
        """Raises ClusterError when the node can't take part."""
        self._check(member, report)
        first_shard = self.places.assign(member, report)
        member.host = report.host
        self.events.write(
            "replica-placed",
            replica=member.number,
            life=member.life,
            host=report.host,
            node=report.node_id,
            pid=report.pid,
            store=str(member.store),
        )
        task = self.task.of(member.run_id, member.store, first_shard)
        member.call(State.LOADING, member.actor.load.remote(task))

    def _report(self, member: Member) -> NodeReport:
        try:
            report: NodeReport = ray.get(member.pending, timeout=_INSPECT_SECONDS)
        except (RayError, TimeoutError) as error:
            raise ClusterError(
                f"replica {member.number} can't start: {short(error)}; is the extractor installed on every node?"
            ) from error
        self._check(member, report)
        return report

    def _check(self, member: Member, report: NodeReport) -> None:
        now = time.time()
        check_node(report, self.versions, now - (time.monotonic() - member.since), now)


def short(error: BaseException) -> str:
    """Ray's errors are pages. Of a failed call the last line names the cause, of all others the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    return lines[-1] if isinstance(error, ray.exceptions.RayTaskError) else f"{type(error).__name__}: {lines[0]}"
