"""A job over several nodes: the hours of all together, the disk of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from extractor.budget.rates import Rate
from extractor.budget.room import Job
from extractor.budget.rows import ScenarioRow
from extractor.budget.units import hours
from extractor.replicas.leases import LeaseLimits
from extractor.sizes import counted, size


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """`node_tokens` and `node_bytes` are bounds for a node of average speed that writes to its own disk: its share and
    one lease; `node_bytes` with seals and rounding. `hours` is without loading the model; None without a rate."""

    replicas: int
    hours: float | None
    node_tokens: int
    node_bytes: int

    def __str__(self) -> str:
        return (
            f"on {self.replicas:,} replicas: {hours(self.hours)}; each node's own disk needs {size(self.node_bytes)} "
            f"for up to {counted(self.node_tokens, 'token')}"
        )


def replica_plan(chosen: ScenarioRow, replicas: int, with_codec: bool) -> ReplicaPlan:
    """`chosen` already at the rate of all replicas."""
    share = -(-chosen.tokens // replicas)
    lease = min(LeaseLimits().max_tokens, int(LeaseLimits().tail_share * share))
    tokens = min(chosen.tokens, share + lease)
    coded = chosen.coded_bytes if with_codec else None
    size = chosen.size_bytes if coded is None else coded
    part = tokens / chosen.tokens if chosen.tokens else 0.0
    job = Job(samples=round(chosen.samples * part), tokens=tokens, size_bytes=round(size * part))
    return ReplicaPlan(replicas=replicas, hours=chosen.hours, node_tokens=tokens, node_bytes=job.disk_bytes)


def of_all(rate: Rate | None, replicas: int) -> Rate | None:
    """`rate` is of one replica. Replicas share nothing but the queue, so theirs add up."""
    if rate is None or replicas == 1:
        return rate
    return replace(
        rate,
        tokens_per_s=rate.tokens_per_s * replicas,
        slowest_tokens_per_s=rate.slowest_tokens_per_s * replicas,
        fastest_tokens_per_s=rate.fastest_tokens_per_s * replicas,
        origin=f"{replicas} replicas, each: {rate.origin}",
    )
