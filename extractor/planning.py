"""`plan`: what a corpus will cost in disk and hours, before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from extractor.budget.calibration import Calibration, Extract, calibrate
from extractor.budget.codec_ratio import CodecRatio, codec_ratio
from extractor.budget.geometry import Geometry, geometry
from extractor.budget.plot import draw_costs, require_plot
from extractor.budget.rates import Rate, parse_baseline, parse_rate
from extractor.budget.replicas import of_all, replica_plan
from extractor.budget.report import Plan
from extractor.budget.room import Job, RoomReport, require_same_samples, room_report
from extractor.budget.rows import Price, ScenarioRow, cap_rows, histogram, scenario_rows, source_rows, total_row
from extractor.budget.run_records import rate_like
from extractor.budget.scenarios import Choice, Corpus, find_source, heavy_sources, scenarios
from extractor.budget.sources import find_sources, read_sources, samples_files
from extractor.budget.stores import Nearby, nearby_stores
from extractor.budget.table_files import has_loss_mask
from extractor.errors import UsageError
from extractor.manifest import Manifest
from extractor.paths import strings_to_paths

CAPS = (4096, 8192, 12288, 16384)
SHOWN_CAP = 8192  # of the scenarios when no cap is chosen: what `prepare` caps at by default


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """Options of `plan`. `max_length` and `caps` are in tokens; without `max_length` samples stay whole. `like` is a
    store whose runs give the rate and whose codec gives its ratio; `look` are folders to search for existing stores
    (none: the filesystem of `out`)."""

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
    calibrate: int | None = None
    repeats: int = 3
    engine: str = "vllm"
    tp: int = 1
    replicas: int = 1
    like: Path | None = None
    codec: str = "none"
    out: Path | None = None
    look: tuple[Path, ...] = ()
    plot: Path | None = None

    def __post_init__(self) -> None:
        strings_to_paths(self)
        for option, cap in [("--max-length", self.max_length), *(("--caps", cap) for cap in self.caps)]:
            if cap is not None and cap < 1:
                raise UsageError(f"{option} is {cap}; a cap keeps at least 1 token; leave it out to keep samples whole")
        for source, count in self.take.items():
            if count < 1:
                raise UsageError(f"--take {source}={count}; at least 1 sample can be taken; use --drop to take none")
        if self.replicas < 1:
            raise UsageError(f"--replicas is {self.replicas}; at least 1 engine does the work; leave it out for 1")
        if self.seed < 0:
            raise UsageError(f"--seed is {self.seed}; it must be 0 or more")
        given = [f"--{name}" for name in ("baseline", "rate", "calibrate") if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} both say how fast it goes; give one of them")


def plan(config: PlanConfig, extract: Extract | None = None) -> Plan:
    """Read the lengths, apply the choices, price them. `extract` is what a calibration times (None: the real one).

    Raises UsageError, InputError or StoreError.
    """
    if config.like:
        Manifest.load(config.like)
    sizes = geometry(config.model, config.hidden_size, config.num_layers, config.layers, config.last, config.like)
    rate, timing = _known_rate(config), _timing(config)
    if config.plot:
        require_plot(config.plot)
    nearby = nearby_stores(config.out, config.look)
    ratio = codec_ratio(config.like, nearby.stores, sizes)
    sources = find_sources(config.data)
    if config.out and not (config.drop or config.take or config.max_length):
        require_same_samples(config.out, [file for source in sources for file in source.files], samples_files(sources))
    tally = read_sources(sources)
    corpus = tally.lengths()
    chosen = _choice(config, corpus)
    notes = [_codec_note(config, ratio), *map(_mask_note, samples_files(sources))]
    if timing:
        rate, caution = calibrate(timing, chosen.apply(corpus), samples_files(sources), extract or _real_extract())
        notes.append(caution)
    rate = of_all(rate, config.replicas)
    price = Price(bytes_per_token=sizes.bytes_per_token, rate=rate, codec_ratio=ratio.ratio if ratio else None)
    if config.plot:
        draw_costs(config.plot, corpus, {*config.caps, *filter(None, [config.max_length])}, price)
    rows = scenario_rows(corpus, scenarios(chosen, heavy_sources(corpus), SHOWN_CAP), chosen, price)
    row = next(row for row in rows if row.chosen)
    return Plan(
        geometry=sizes,
        rate=rate,
        codec_ratio=ratio,
        sources=tuple(source_rows(corpus, price)),
        total=total_row(corpus, price),
        caps=tuple(cap_rows(replace(chosen, cap=None).apply(corpus), config.caps, config.max_length, price)),
        scenarios=tuple(rows),
        seed=config.seed,
        histogram=tuple(histogram(chosen.apply(corpus))),
        room=_room(config, row, nearby, sizes),
        replicas=replica_plan(row, config.replicas, config.codec != "none") if config.replicas > 1 else None,
        rejected_records=tally.rejected,
        rejects=tuple(tally.rejects),
        notes=tuple(filter(None, notes)),
    )


def _timing(config: PlanConfig) -> Calibration | None:
    """The calibration that is asked for, checked before anything is read."""
    if config.calibrate is None:
        return None
    if config.model is None:
        raise UsageError("--calibrate runs the model, so it needs its folder; give --model DIR")
    return Calibration(
        model=config.model,
        samples=config.calibrate,
        repeats=config.repeats,
        engine=config.engine,
        tp=config.tp,
        layers=config.layers,
        last=config.last,
        codec=config.codec,
        seed=config.seed,
        out=config.out,
    )


def _real_extract() -> Extract:
    from extractor.extraction import extract

    return extract


def _known_rate(config: PlanConfig) -> Rate | None:
    """What a number or a past run says; None where neither is given or a calibration will tell."""
    if config.calibrate is not None:
        return None
    if config.baseline is not None:
        return parse_baseline(config.baseline)
    if config.rate is not None:
        return parse_rate(config.rate)
    return rate_like(config.like) if config.like else None


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


def _room(config: PlanConfig, chosen: ScenarioRow, nearby: Nearby, sizes: Geometry) -> RoomReport | None:
    if config.out is None:
        return None
    coded = chosen.coded_bytes if config.codec != "none" else None
    size = chosen.size_bytes if coded is None else coded
    job = Job(samples=chosen.samples, tokens=chosen.tokens, size_bytes=size)
    return room_report(config.out, job, nearby, sizes)


def _mask_note(file: Path) -> str:
    if has_loss_mask(file):
        return ""
    return f"{file} has no column loss_mask, so every token of it counts as trained on"


def _codec_note(config: PlanConfig, ratio: CodecRatio | None) -> str:
    if config.codec == "none" or ratio is not None:
        return ""
    return (
        f"no store with codec {config.codec} was found to measure its ratio, so the disk is judged by the size without "
        "a codec; name such a store with --like"
    )
