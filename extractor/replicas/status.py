"""A run over replicas at one moment, for the display and the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from extractor.replicas.fleet import Fleet
from extractor.replicas.leases import LeaseQueue
from extractor.replicas.member import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """`tokens` and `samples` are sealed ones; `seconds` since the first engine was ready, 0 before."""

    members: tuple[Member, ...]
    samples: int
    tokens: int
    total_samples: int
    total_tokens: int
    seconds: float
    deaths: int
    leases_returned: int
    row_bytes: int

    @classmethod
    def of(cls, fleet: Fleet, queue: LeaseQueue, row_bytes: int) -> Status:
        return cls(
            members=tuple(fleet.members),
            samples=queue.sealed_samples,
            tokens=queue.sealed_tokens,
            total_samples=queue.total_samples,
            total_tokens=queue.total_tokens,
            seconds=max((member.seconds for member in fleet.members), default=0.0),
            deaths=fleet.deaths,
            leases_returned=queue.returned,
            row_bytes=row_bytes,
        )

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def gb_per_s(self) -> float:
        return self.tokens_per_s * self.row_bytes / 1e9
