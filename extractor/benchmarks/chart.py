"""A PNG for each question: a bar for each variant, with the range between the quartiles."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from extractor.benchmarks.results import Question, Results
from extractor.benchmarks.table import Table

_BAR_INCHES = 0.32
_BASELINE, _OTHERS = "#9aa5b1", "#2f6f9f"


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(results: Results, question: Question, file: Path) -> None:
    """One panel a table: speed relative to the baseline where there is one, else the values."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [len(table.rows) * _BAR_INCHES + 0.9 for table in question.tables]
    figure = Figure(figsize=(10, sum(heights) + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
    for panel, table in zip(panels[:, 0], question.tables, strict=True):
        _draw_table(panel, table)
    toy = "TOY SIZES, " if results.toy else ""
    caption = f"{toy}{results.started[:10]}, commit {results.commit}, {results.machine['processor']}"
    figure.suptitle(f"{question.question}\n{caption}", fontsize=10)
    figure.savefig(file, dpi=110)


def _draw_table(panel: Any, table: Table) -> None:
    rows = list(reversed(table.rows))
    ranges = [row.speed if table.baseline and row.speed else row.value for row in rows]
    middle = [r.median for r in ranges]
    reach = [[r.median - r.low for r in ranges], [r.high - r.median for r in ranges]]
    colours = [_BASELINE if row.variant == table.baseline else _OTHERS for row in rows]
    panel.barh([row.variant for row in rows], middle, xerr=reach, color=colours, ecolor="#333333", capsize=2)
    for place, value in enumerate(middle):
        panel.annotate(f" {value:.3g}", (value, place), va="bottom", fontsize=7)
    if table.baseline:
        panel.axvline(1, color="#9aa5b1", linewidth=0.8)
    panel.set_title(table.title, fontsize=8)
    panel.set_xlabel(f"speed, {table.baseline} = 1" if table.baseline else table.unit, fontsize=7)
    panel.tick_params(labelsize=7)
