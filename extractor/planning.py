"""`plan`: what a corpus will cost in disk and hours, before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from extractor.budget.geometry import geometry
from extractor.budget.rates import Rate, parse_baseline, parse_rate
from extractor.budget.report import Plan
from extractor.budget.room import RoomReport
from extractor.budget.rows import Price, cap_rows, histogram, scenario_rows, source_rows, total_row
from extractor.budget.scenarios import Choice, Corpus, find_source, heavy_sources, scenarios
from extractor.budget.sources import find_sources, read_sources
from extractor.budget.verdict import judge
from extractor.disk import disk_space
from extractor.errors import UsageError

CAPS = (4096, 8192, 12288, 16384)
SHOWN_CAP = 8192  # of the scenarios when no cap is chosen: what `prepare` caps at by default


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """Options of `plan`. `max_length` and `caps` are in tokens; without `max_length` samples stay whole."""

    data: tuple[Path, ...]
    model: Path | None = None
    hidden_size: int | None = None
    num_layers: int | None = None
    layers: str = "eagle3"
    last: bool = False
    max_length: int | None = None
    caps: tuple[int, ...] = CAPS
    drop: tuple[str, ...] = ()
    take: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    baseline: str | None = None
    rate: str | None = None
    out: Path | None = None

    def __post_init__(self) -> None:
        for option, cap in [("--max-length", self.max_length), *(("--caps", cap) for cap in self.caps)]:
            if cap is not None and cap < 1:
                raise UsageError(f"{option} is {cap}; a cap keeps at least 1 token; leave it out to keep samples whole")
        for source, count in self.take.items():
            if count < 1:
                raise UsageError(f"--take {source}={count}; at least 1 sample can be taken; use --drop to take none")
        if self.seed < 0:
            raise UsageError(f"--seed is {self.seed}; it must be 0 or more")
        if self.baseline and self.rate:
            raise UsageError("--baseline and --rate both say how fast it goes; give one of them")


def plan(config: PlanConfig) -> Plan:
    """Read the lengths, apply the choices, price them. Raises UsageError, InputError or StoreError."""
    sizes = geometry(config.model, config.hidden_size, config.num_layers, config.layers, config.last)
    rate = _rate(config)
    tally = read_sources(find_sources(config.data))
    corpus = tally.lengths()
    chosen = _choice(config, corpus)
    price = Price(bytes_per_token=sizes.bytes_per_token, rate=rate, codec_ratio=None)
    rows = scenario_rows(corpus, scenarios(chosen, heavy_sources(corpus), SHOWN_CAP), chosen, price)
    return Plan(
        geometry=sizes,
        rate=rate,
        codec_ratio=None,
        sources=tuple(source_rows(corpus, price)),
        total=total_row(corpus, price),
        caps=tuple(cap_rows(replace(chosen, cap=None).apply(corpus), config.caps, config.max_length, price)),
        scenarios=tuple(rows),
        seed=config.seed,
        histogram=tuple(histogram(chosen.apply(corpus))),
        room=_room(config, next(row.size_bytes for row in rows if row.chosen)),
        rejected_records=tally.rejected,
        rejects=tuple(tally.rejects),
        notes=(),
    )


def _rate(config: PlanConfig) -> Rate | None:
    if config.baseline:
        return parse_baseline(config.baseline)
    return parse_rate(config.rate) if config.rate else None


def _choice(config: PlanConfig, corpus: Corpus) -> Choice:
    names = list(corpus)
    drop = tuple(dict.fromkeys(find_source(text, names, "--drop") for text in config.drop))
    take = {find_source(text, names, "--take"): count for text, count in config.take.items()}
    both = [name for name in drop if name in take]
    if both:
        raise UsageError(f"{both[0]} is named by --drop and by --take; a source can be dropped or drawn from, not both")
    if len(drop) == len(names):
        raise UsageError(f"--drop names every source ({', '.join(names)}), so nothing is left to plan; keep one")
    return Choice(drop=drop, take=take, cap=config.max_length, seed=config.seed)


def _room(config: PlanConfig, need_bytes: int) -> RoomReport | None:
    if config.out is None:
        return None
    space = disk_space(config.out)
    verdict = judge(need_bytes, space.free_bytes, [])
    return RoomReport(out=config.out, space=space, stored_tokens=0, verdict=verdict)
