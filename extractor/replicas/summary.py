"""What a run over replicas did, beside what every run says about itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from extractor.replicas.member import Member, State
from extractor.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTotals:
    """One replica through all its lives. `reason`: why it was lost last, or retired."""

    number: int
    host: str
    samples: int
    tokens: int
    tokens_per_s: float
    stalled_seconds: float
    leases: int
    lives: int
    retired: bool
    reason: str

    @classmethod
    def of(cls, member: Member) -> ReplicaTotals:
        return cls(
            number=member.number,
            host=member.host,
            samples=member.samples,
            tokens=member.tokens,
            tokens_per_s=member.tokens_per_s,
            stalled_seconds=member.stalled_seconds,
            leases=member.leases,
            lives=member.life,
            retired=member.state is State.RETIRED,
            reason=member.reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSummary(Summary):
    """`deaths`: processes and nodes lost; `leases_returned`: leases that came back unfinished; `elsewhere`: folders
    of shards that can't be seen from the driver (`extractor gather` collects them); `unconfirmed`: samples in those of
    hosts that have left the cluster since."""

    replicas: tuple[ReplicaTotals, ...]
    deaths: int
    leases_returned: int
    elsewhere: tuple[str, ...]
    unconfirmed: int
    events_file: Path

    @property
    def retired(self) -> list[ReplicaTotals]:
        return [replica for replica in self.replicas if replica.retired]

    @property
    def exit_code(self) -> int:
        """As of any run, and 3 when the job is done but a replica was retired, or samples are out of reach."""
        return Summary.exit_code.fget(self) or (3 if self.retired or self.unconfirmed else 0)  # type: ignore[attr-defined]

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}
        return document

    @classmethod
    def extend(cls, base: Summary, **more: Any) -> ReplicaSummary:
        return cls(**{item.name: getattr(base, item.name) for item in fields(Summary)}, **more)
