"""Cost by source and cap, as a picture. Needs matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from extractor.budget.rows import Price
from extractor.budget.scenarios import Corpus
from extractor.errors import UsageError
from extractor.output import write_whole
from extractor.sizes import GIB

SUFFIXES = (".png", ".svg", ".pdf")
_SHOWN_SOURCES = 12  # more colours can't be told apart; the smallest are added up


def require_plot(file: Path) -> None:
    """Raise UsageError unless `file` can be drawn: asked before a long calculation, not after it."""
    if file.suffix not in SUFFIXES:
        raise UsageError(f"--plot {file} is no picture; give a file name that ends with {', '.join(SUFFIXES)}")
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"--plot {file} lies in a folder that does not exist; make the folder first")
    if file.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--plot {file} can't be written there; name a file in a folder that you may write to")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(
            '--plot needs matplotlib, which is not installed; install "hidden-state-extractor[plot]"'
        ) from None


def draw_costs(file: Path, corpus: Corpus, caps: Collection[int], price: Price) -> None:
    """One stacked bar per cap and one without, sources by tokens; GiB on the left, hours on the right when known.

    Raises StoreError when the file can't be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.2 * len(caps) + 5, 5), layout="constrained")
    axes = figure.add_subplot()
    columns: list[int | None] = [*sorted(caps), None]
    bottoms = [0.0] * len(columns)
    names = ["no cap" if cap is None else f"{cap:,}" for cap in columns]
    for source, tokens in costs(corpus, columns):
        heights = [price.size_bytes(count) / GIB for count in tokens]
        axes.bar(names, heights, bottom=bottoms, label=source)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set(xlabel="cap in tokens", ylabel="GiB", title="Size by source and cap")
    if price.rate:
        hours_per_gib = price.rate.hours(GIB) / price.bytes_per_token
        low, high = axes.get_ylim()
        axes.twinx().set(ylabel="hours", ylim=(low * hours_per_gib, high * hours_per_gib))
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper")
    picture = io.BytesIO()
    figure.savefig(picture, format=file.suffix.removeprefix("."))
    write_whole(file, picture.getvalue())


def costs(corpus: Corpus, caps: Sequence[int | None]) -> list[tuple[str, list[int]]]:
    """(source, its tokens under each cap), most tokens first; the smallest sources beyond a dozen as one."""
    rows = [(name, [lengths.capped(cap).tokens for cap in caps]) for name, lengths in corpus.items()]
    rows.sort(key=lambda row: -row[1][-1])
    if len(rows) <= _SHOWN_SOURCES:
        return rows
    rest = [row[1] for row in rows[_SHOWN_SOURCES - 1 :]]
    return [*rows[: _SHOWN_SOURCES - 1], (f"{len(rest)} others", [sum(column) for column in zip(*rest, strict=True)])]
