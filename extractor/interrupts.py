"""Ctrl-C: the first one asks for an orderly end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks the engine to stop after its step; the second raises KeyboardInterrupt."""
    asked: list[int] = []

    def handle(signum: int, _frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(signum)

    try:
        before = signal.signal(signal.SIGINT, handle)
    except ValueError:  # not the main thread: the embedding program handles signals
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
