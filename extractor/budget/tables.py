"""A plan as tables for people. Every number here is also in the plan's JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from extractor.budget.report import Plan
from extractor.budget.room_tables import room_lines
from extractor.budget.rows import Bin, CapRow, ScenarioRow, SourceRow
from extractor.budget.units import hours
from extractor.sizes import counted, size

_BAR_WIDTH = 40
_HEAVY_MARK = "!"
_CHOSEN_MARK = ">"


def tables(plan: Plan, every_store: bool = False) -> RenderableType:
    """Everything, in the order in which a person asks: what is it, what drives it, what would help, does it fit."""
    return Group(*_parts(plan, every_store))


def _parts(plan: Plan, every_store: bool) -> Iterator[RenderableType]:
    yield Text(plan.geometry.formula)
    yield Text(rate_line(plan))
    yield ""
    yield _sources(plan)
    yield from _heavy_lines(plan)
    yield ""
    yield _caps(plan)
    yield ""
    yield _scenarios(plan)
    yield ""
    yield from _histogram(plan.histogram)
    yield ""
    yield Text(chosen_line(plan), style="bold")
    if plan.replicas:
        yield Text(str(plan.replicas), style="bold")
    if plan.room:
        yield from room_lines(plan.room, every_store)
    yield from (Text(f"note: {note}") for note in plan.notes)


def rate_line(plan: Plan) -> str:
    rate = plan.rate
    if rate is None:
        return "no rate is known, so no hours: give --baseline TOKENS/HOURS, --rate, --like STORE or --calibrate K"
    line = f"{rate.tokens_per_s:,.1f} tokens/s ({rate.origin})"
    if rate.repeats < 2:
        return line
    return (
        f"{line}; {rate.repeats} repeats from {rate.slowest_tokens_per_s:,.1f} to {rate.fastest_tokens_per_s:,.1f}, "
        f"a spread of {rate.spread:.0%}"
    )


def chosen_line(plan: Plan) -> str:
    row = plan.chosen
    coded = f", {size(row.coded_bytes)} with the lossless codec" if row.coded_bytes is not None else ""
    return (
        f"chosen: {row.scenario}: {counted(row.samples, 'sample')}, {counted(row.tokens, 'token')}, "
        f"{size(row.size_bytes)}{coded}, "
        f"{hours(row.hours)}{_range(plan)}"
    )


def _range(plan: Plan) -> str:
    """The hours at the fastest and slowest repeat of a measured rate."""
    if plan.rate is None or plan.rate.repeats < 2:
        return ""
    seconds = (plan.chosen.tokens / r for r in (plan.rate.fastest_tokens_per_s, plan.rate.slowest_tokens_per_s))
    return f" ({' to '.join(hours(s / 3600) for s in seconds)})"


def _table(title: str, *columns: str) -> Table:
    """The first column is text, the others are numbers."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=index > 0)
    return table


def _sources(plan: Plan) -> Table:
    table = _table(
        "Sources", "source", "samples", "share", "tokens", "share", "mean", "p50", "p90", "p99", "max", "size", "time"
    )
    for row in (*plan.sources, plan.total):
        table.add_row(*_source_cells(row), style="bold" if row is plan.total else None)
    return table


def _source_cells(row: SourceRow) -> list[str]:
    name = f"{row.source} {_HEAVY_MARK}" if row.heavy else row.source
    lengths = (row.p50_tokens, row.p90_tokens, row.p99_tokens, row.longest_tokens)
    return [
        escape(name),
        f"{row.samples:,}",
        f"{row.sample_share:.1%}",
        f"{row.tokens:,}",
        f"{row.token_share:.1%}",
        f"{row.mean_tokens:,.1f}",
        *(f"{value:,}" for value in lengths),
        size(row.size_bytes),
        hours(row.hours),
    ]


def _heavy_lines(plan: Plan) -> Iterator[Text]:
    for row in plan.sources:
        if row.heavy:
            ratio = row.token_share / row.sample_share
            yield Text(
                f"{_HEAVY_MARK} {row.source} is out of proportion: {row.sample_share:.1%} of the samples, "
                f"{row.token_share:.1%} of the tokens ({ratio:.1f} times its share)"
            )


def _coded_column(plan: Plan) -> list[str]:
    return [f"x {plan.codec_ratio.ratio:.2f}"] if plan.codec_ratio else []


def _coded_cell(plan: Plan, row: CapRow | ScenarioRow) -> list[str]:
    return [size(row.coded_bytes)] if plan.codec_ratio and row.coded_bytes is not None else []


def _caps(plan: Plan) -> Table:
    chosen = plan.chosen.samples
    table = _table(
        f"Caps (of the {counted(chosen, 'sample')} chosen)",
        "cap",
        "kept",
        "dropped",
        "truncated samples",
        "size",
        *_coded_column(plan),
        "time",
    )
    for row in plan.caps:
        cells = (f"{row.kept_tokens:,}", f"{row.dropped_tokens:,}", f"{row.truncated_samples:,}", size(row.size_bytes))
        mark = _CHOSEN_MARK if row.chosen else " "
        table.add_row(f"{mark} {row.cap_tokens:,}", *cells, *_coded_cell(plan, row), hours(row.hours))
    return table


def _scenarios(plan: Plan) -> Table:
    columns = ("samples", "tokens", "size", *_coded_column(plan), "time", "saves", "")
    table = _table(f"Scenarios (seed {plan.seed})", "scenario", *columns)
    for row in plan.scenarios:
        mark = _CHOSEN_MARK if row.chosen else " "
        cells = (f"{row.samples:,}", f"{row.tokens:,}", size(row.size_bytes), *_coded_cell(plan, row), hours(row.hours))
        saved = (size(row.saved_bytes), hours(row.saved_hours)) if row.saved_bytes else ("", "")
        table.add_row(f"{mark} {escape(row.scenario)}", *cells, *saved, style="bold" if row.chosen else None)
    return table


def _histogram(bins: tuple[Bin, ...]) -> Iterator[Any]:
    """Two bars a line: how many samples are of that length, and how many of the tokens they hold."""
    most = max(max(b.samples / _total(bins, "samples"), b.tokens / _total(bins, "tokens")) for b in bins)
    table = _table("Lengths in tokens", "", "samples", "tokens", "")
    table.columns[3].justify = "left"
    for row in bins:
        samples, tokens = row.samples / _total(bins, "samples"), row.tokens / _total(bins, "tokens")
        bars = Text("#" * round(samples / most * _BAR_WIDTH), style="cyan")
        bars.append("\n" + "=" * round(tokens / most * _BAR_WIDTH), style="magenta")
        table.add_row(f"{row.from_tokens:,} to {row.below_tokens - 1:,}", f"{samples:.1%}", f"{tokens:.1%}", bars)
    yield table
    yield Text("# share of samples   = share of tokens", style="dim")


def _total(bins: tuple[Bin, ...], name: str) -> int:
    return sum(getattr(b, name) for b in bins)
