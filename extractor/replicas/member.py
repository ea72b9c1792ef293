"""What the driver knows of one replica."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class State(enum.StrEnum):
    """The call that is under way decides what comes next."""

    PLACING = "placing"
    INSPECTING = "inspecting"
    LOADING = "loading"
    WORKING = "working"
    FINISHED = "finished"
    RETIRED = "retired"


@dataclass(slots=True, eq=False)
class Member:
    """Replica `number` through all its lives. `pending` is the one call under way, made at `since` (monotonic
    seconds). `failures` counts deaths without a seal in between. Totals are
    over all lives, but for `stalled_seconds` and `restarts`, which are of the present one."""

    number: int
    state: State = State.PLACING
    life: int = 0
    group: Any = None
    actor: Any = None
    pending: Any = None
    since: float = 0.0
    host: str = ""
    run_id: str = ""
    store: Path = field(default_factory=Path)
    samples: int = 0
    tokens: int = 0
    leases: int = 0
    stalled_seconds: float = 0.0
    restarts: int = 0
    working_seconds: float = 0.0
    working_since: float | None = None
    last_news: float = 0.0
    failures: int = 0
    reason: str = ""

    @property
    def holder(self) -> str:
        """Key of this life in the lease queue."""
        return f"r{self.number}.{self.life}"

    @property
    def is_up(self) -> bool:
        return self.state in (State.PLACING, State.INSPECTING, State.LOADING, State.WORKING)

    @property
    def seconds(self) -> float:
        """At work, over all lives."""
        now = 0.0 if self.working_since is None else time.monotonic() - self.working_since
        return self.working_seconds + now

    @property
    def tokens_per_s(self) -> float:
        seconds = self.seconds
        return self.tokens / seconds if seconds else 0.0

    def call(self, state: State, pending: Any) -> None:
        self.state, self.pending, self.since = state, pending, time.monotonic()

    def start_working(self) -> None:
        self.working_since = self.last_news = time.monotonic()

    def end_life(self) -> None:
        """Forget the actor; the next life starts from nothing."""
        self.working_seconds, self.working_since = self.seconds, None
        self.group = self.actor = self.pending = None
        self.life += 1


def speed_share(member: Member, members: list[Member]) -> float:
    """The member's part of the speed of all that are up, in (0, 1]."""
    up = [other.tokens_per_s for other in members if other.is_up]
    return share_of(member.tokens_per_s, up)


def share_of(rate: float, rates: list[float]) -> float:
    """`rate` over the sum of `rates` (tokens/s, `rate` among them); 0 is unknown and counts as average."""
    known = [other for other in rates if other]
    mean = sum(known) / len(known) if known else 1.0
    return (rate or mean) / sum(other or mean for other in rates)
