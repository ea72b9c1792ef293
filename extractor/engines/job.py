"""What an engine is told, and what it says back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from extractor import ring_size
from extractor.config import Config
from extractor.samples import Sample
from extractor.warm_up import steady_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run's share of work as every rank sees it. `layer_ids` in the user's order; sizes in counts and bytes."""

    run_id: str
    store: Path
    layer_ids: tuple[int, ...]
    num_layers: int
    hidden_size: int
    dtype: str
    overflow: str
    expected_bytes: int
    token_budget: int
    commit_seconds: float

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row, [L, H] at two bytes a value."""
        return 2 * len(self.layer_ids) * self.hidden_size

    @property
    def slot_rows(self) -> int:
        return ring_size.slot_rows(self.row_bytes, self.token_budget)

    @property
    def num_slots(self) -> int:
        return ring_size.num_slots(self.row_bytes, self.token_budget)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for sending to another process."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "store": str(self.store), "layer_ids": list(self.layer_ids)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Job:
        return cls(**{**values, "store": Path(values["store"]), "layer_ids": tuple(values["layer_ids"])})


@dataclass(slots=True)
class Progress:
    """Totals since the run began, over all ranks. `stalled_seconds` is the longest wait of a rank for its disk,
    `warm_up_seconds` the longest of the ranks' first steps, which had `warm_up_tokens` rows together."""

    samples: int = 0
    tokens: int = 0
    bytes: int = 0
    stalled_seconds: float = 0.0
    warm_up_tokens: int = 0
    warm_up_seconds: float = 0.0

    def tokens_per_s(self, seconds: float) -> float:
        """Without the warm-up, `seconds` after the run began."""
        return steady_rate(self.tokens, seconds, self.warm_up_tokens, self.warm_up_seconds)

    @classmethod
    def of_ranks(cls, ranks: list[dict[str, Any]]) -> Progress:
        """Sum what `Session.status` of each rank says."""
        return cls(
            samples=sum(r["samples"] for r in ranks),
            tokens=sum(r["tokens"] for r in ranks),
            bytes=sum(r["bytes"] for r in ranks),
            stalled_seconds=max((r["stalled_seconds"] for r in ranks), default=0.0),
            warm_up_tokens=sum(r["warm_up_tokens"] for r in ranks),
            warm_up_seconds=max((r["warm_up_seconds"] for r in ranks), default=0.0),
        )


class StopFlag(Protocol):
    """True once the user asked to stop: the engine finishes its step, seals what is whole and returns."""

    def __call__(self) -> bool: ...


class Engine(Protocol):
    """Loads its model when made, runs one job, and is closed."""

    def __init__(self, config: Config, longest: int) -> None: ...

    def run(
        self, job: Job, samples: Iterator[Sample], report: Callable[[Progress], None], stop: StopFlag
    ) -> list[dict[str, Any]]:
        """Extract all samples; returns each rank's last status, with its findings."""
        ...

    def close(self) -> None:
        """Stop all processes of the engine. Idempotent."""
        ...


def rank_error_file(job: Job, rank: int) -> Path:
    """Where a rank of another process leaves the reason of its failure."""
    return job.store / "runs" / f"{job.run_id}.rank-{rank}.error"
