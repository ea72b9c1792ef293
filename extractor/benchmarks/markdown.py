"""A run as Markdown: what a person reads first, with everything needed to judge it."""

from __future__ import annotations

from collections.abc import Iterator

from extractor.benchmarks.results import Question, Results
from extractor.benchmarks.table import Range, Row, Table

_SCALES = (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9))


def to_markdown(results: Results) -> str:
    """`speed` is relative to the table's baseline (1.00x), 2.00x is twice as fast; brackets hold the quartiles."""
    lines = [f"# Benchmarks of {results.started[:16].replace('T', ' ')} UTC, commit {results.commit}", ""]
    if results.toy:
        lines += ["**Toy sizes: these figures show that the benchmarks run, and nothing else.**", ""]
    lines += [f"* {name}: {value}" for name, value in results.machine.items()]
    lines += [f"* versions: {', '.join(f'{name} {version}' for name, version in results.versions.items())}", ""]
    lines += [
        "Medians; in brackets the quartiles. `speed` is relative to the table's baseline, taken round by round between "
        "variants that took turns: 2.00x is twice as fast. `load` is the machine's load average over one minute, "
        "before and after.",
        "",
    ]
    for question in results.questions:
        lines += _question(question)
    return "\n".join(lines)


def _question(question: Question) -> Iterator[str]:
    before, after = question.load
    yield f"## {question.name}: {question.question}"
    yield ""
    yield f"{question.seconds:.0f} s, peak memory {question.peak_mib:,.0f} MiB, load {before:.1f} to {after:.1f}."
    yield ""
    for table in question.tables:
        yield from _table(table)
    for what, why in question.not_measured:
        yield f"* not measured: {what}: {_one_line(why)}"
    for what, why in question.failed:
        yield f"* **failed**: {what}: {_one_line(why)}"
    if question.not_measured or question.failed:
        yield ""


def _table(table: Table) -> Iterator[str]:
    yield f"### {table.title}"
    yield ""
    columns = [
        "variant",
        "median",
        *(["speed"] if table.baseline else []),
        *([table.rate_unit] if table.rate_unit else []),
    ]
    yield f"| {' | '.join([*columns, 'rounds', 'what it measures'])} |"
    yield f"|---|{'---:|' * len(columns)}---|"
    for row in table.rows:
        yield f"| {' | '.join(_cells(row, table))} |"
    yield ""
    if table.remark:
        yield table.remark
        yield ""


def _cells(row: Row, table: Table) -> Iterator[str]:
    yield row.variant
    yield quantity(row.value, table.unit)
    if table.baseline:
        yield speed(row.speed)
    if table.rate_unit:
        yield "" if row.rate is None else f"{row.rate:,.{0 if row.rate >= 100 else 2}f}"
    yield str(row.rounds)
    counted = ", ".join(f"{name} {_short(value)}" for name, value in row.extra.items())
    yield "; ".join(filter(None, [row.note, counted]))


def quantity(value: Range, unit: str) -> str:
    """`12.3 ms [12.1, 12.9]`."""
    name, scale = _scale(value.median) if unit == "s" else (unit, 1.0)
    median, low, high = (_number(part * scale) for part in (value.median, value.low, value.high))
    return f"{median} {name} [{low}, {high}]"


def speed(value: Range | None) -> str:
    return "" if value is None else f"{value.median:.2f}x [{value.low:.2f}, {value.high:.2f}]"


def _scale(seconds: float) -> tuple[str, float]:
    return next((scale for scale in _SCALES if seconds * scale[1] >= 1), _SCALES[-1])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _short(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
