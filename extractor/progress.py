"""Progress of a run on stderr, and its summary on stdout."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from extractor.engines.job import Progress as RunProgress
from extractor.sizes import size
from extractor.summary import Summary

_LINE_SECONDS = 5.0


class ProgressDisplay:
    """A bar on a terminal, a plain line every few seconds elsewhere. Time counts from the first update."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._started: float | None = None
        self._last_line = -_LINE_SECONDS

    def __enter__(self) -> ProgressDisplay:
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("tokens"),
                BarColumn(),
                TaskProgressColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rates]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, progress: RunProgress, total_samples: int, total_tokens: int) -> None:
        """Called every few seconds by `extract`."""
        now = time.monotonic()
        if self._started is None:
            self._started = now
        seconds = max(now - self._started, 1e-9)
        rates = rates_text(progress, seconds)
        if self._bar is not None:
            if not self._bar.tasks:
                self._bar.add_task("tokens", total=total_tokens, rates=rates)
            self._bar.update(self._bar.tasks[0].id, completed=progress.tokens, rates=rates)
        elif now - self._last_line >= _LINE_SECONDS or progress.tokens == total_tokens:
            self._last_line = now
            print(
                f"{progress.samples}/{total_samples} samples, {progress.tokens}/{total_tokens} tokens, {rates}, "
                f"{time_left(total_tokens - progress.tokens, progress.tokens_per_s(seconds))}",
                file=sys.stderr,
            )


def rates_text(progress: RunProgress, seconds: float) -> str:
    """`1,234 tokens/s, 0.053 GB/s, 2.0% waiting for the disk`; rates are without the warm-up."""
    tokens_per_s = progress.tokens_per_s(seconds)
    bytes_per_s = tokens_per_s * progress.bytes / progress.tokens if progress.tokens else progress.bytes / seconds
    return (
        f"{tokens_per_s:,.0f} tokens/s, {bytes_per_s / 1e9:.3f} GB/s, "
        f"{progress.stalled_seconds / seconds:.1%} waiting for the disk"
    )


def time_left(left_tokens: int, tokens_per_s: float) -> str:
    if not tokens_per_s:
        return "time left unknown"
    left = int(left_tokens / tokens_per_s)
    return f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"


def print_summary(summary: Summary) -> None:
    """A two-column table on stdout, its paths on lines of their own: in a column they would be cut."""
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in summary_rows(summary):
        table.add_row(name, value)
    print(f"store {summary.store}")
    Console().print(table)
    if summary.findings_file is not None:
        print(f"listed in {summary.findings_file}")


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """(name, value) in the order in which a person asks. Counts are of this run, which they say where there was
    another."""
    which = " of this run" if summary.already_stored else ""
    return [
        ("samples stored now", f"{summary.samples:,}"),
        ("samples stored before", f"{summary.already_stored:,}"),
        ("tokens", f"{summary.tokens:,}"),
        ("tokens/s", f"{summary.tokens_per_s:,.0f}"),
        ("hidden states", size(summary.bytes)),
        ("seconds", f"{summary.seconds:.1f}"),
        ("seconds waiting for the disk", f"{summary.stalled_seconds:.1f}"),
        (f"saturated values{which}", f"{summary.saturated:,}"),
        (f"inf / NaN values{which}", f"{summary.inf:,} / {summary.nan:,}"),
    ]
