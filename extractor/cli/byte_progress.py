"""Progress over bytes on stderr: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from extractor.sizes import size

_LINE_SECONDS = 5.0


class ByteProgress:
    """`update(done, total)` as often as one likes."""

    def __init__(self, what: str) -> None:
        self._what = what
        console = Console(stderr=True)
        columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._started = self._last_line = time.monotonic()

    def __enter__(self) -> ByteProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int) -> None:
        if self._bar is not None:
            task = self._bar.task_ids[0] if self._bar.task_ids else self._bar.add_task(self._what)
            self._bar.update(task, completed=done, total=total)
            return
        now = time.monotonic()
        if now - self._last_line < _LINE_SECONDS:
            return
        self._last_line = now
        rate = done / (now - self._started)
        left = (total - done) / rate if rate else 0.0
        print(
            f"{self._what}: {size(done)} of {size(total)}, {rate / 1e9:.2f} GB/s, {left:.0f} s left",
            file=sys.stderr,
        )
