"""The progress bar of `prepare`: bytes of input read, and tokens per second."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

_BYTES_PER_TOKEN = 5  # of spilled samples: an id and a mask byte


class Progress:
    """Draws on stderr when `shown`."""

    def __init__(self, shown: bool, size_bytes: int) -> None:
        columns = (TextColumn("tokenize"), BarColumn(), TaskProgressColumn(), DownloadColumn(), TimeRemainingColumn())
        rate = TextColumn("{task.fields[tokens]:,.0f} tokens/s")
        self._bar = Bar(*columns, rate, console=Console(stderr=True), disable=not shown, transient=True)
        self._task = self._bar.add_task("tokenize", total=size_bytes, tokens=0.0)
        self._before = 0
        self._tokens = 0.0

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def reached(self, position_bytes: int) -> None:
        """The current file has been read up to here."""
        self._bar.update(self._task, completed=self._before + position_bytes)

    def finished(self, size_bytes: int) -> None:
        """The current file has been read whole."""
        self._before += size_bytes
        self.reached(0)

    def wrote(self, spilled_bytes: int) -> None:
        self._tokens += spilled_bytes / _BYTES_PER_TOKEN
        elapsed = self._bar.tasks[0].elapsed
        self._bar.update(self._task, tokens=self._tokens / elapsed if elapsed else 0.0)
