"""What past runs left in a store: how many tokens went through, how fast, on which machine and engine."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path

from extractor.budget.rates import Rate, measured
from extractor.errors import InputError

# Shorter runs say more about starting than about running.
_LEAST_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """`runs/<run id>.json` of a store, as `extract` writes it; `seconds` without the engine's start. `tokens_per_s` is
    of one engine, also where several replicas ran, and without its warm-up, where the record knows that."""

    run_id: str
    tokens: int
    seconds: float
    tokens_per_s: float
    engine: str
    machine: str


def run_records(store: Path) -> list[RunRecord]:
    """All runs of `store` that wrote tokens, by run id. Raises InputError for a record that can't be read."""
    records = [_read(file) for file in sorted((store / "runs").glob("*.json"))]
    return [record for record in records if record.tokens > 0 and record.seconds > 0]


def rate_like(store: Path) -> Rate:
    """The median rate of the store's runs of a second or more, of all its runs when none lasted that long.

    Raises InputError when the store has no run.
    """
    records = run_records(store)
    records = [r for r in records if r.seconds >= _LEAST_SECONDS] or records
    if not records:
        raise InputError(
            f"{store} has no record of a run that wrote tokens; give --rate or --baseline instead of --like"
        )
    last = records[-1]
    where = "this machine" if last.machine == platform.node() else f"another machine, {last.machine}"
    runs = "1 run" if len(records) == 1 else f"{len(records)} runs"
    return measured([r.tokens_per_s for r in records], f"{runs} of {store.name} with {last.engine} on {where}")


def _read(file: Path) -> RunRecord:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        return RunRecord(
            run_id=str(raw["run_id"]),
            tokens=int(raw["tokens"]),
            seconds=float(raw["seconds"]),
            tokens_per_s=float(raw.get("steady_tokens_per_s", raw["tokens_per_s"]))
            / max(1, len(raw.get("replicas", ()))),
            engine=str(raw["engine"]),
            machine=str(raw["machine"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"run record {file} can't be read ({error!r}); remove that file, then plan again") from error
