"""Ctrl-C and SIGTERM: while there is something to lose, the first one asks for an orderly end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # the second is what job schedulers send before they kill


class Stop:
    """Called: whether somebody asked to stop."""

    def __init__(self) -> None:
        self._asked = self._is_orderly = self._is_installed = False

    def __call__(self) -> bool:
        return self._asked

    def in_order(self) -> None:
        """From now on the first signal only asks; a second one raises KeyboardInterrupt, as each did before. Raises it
        for one that came before: Python ignores what a handler raises inside a destructor."""
        if self._is_installed:
            self.install()  # an engine that was loaded since may have handlers of its own
        self._is_orderly = True
        if self._asked:
            raise KeyboardInterrupt

    def install(self) -> dict[int, Any]:
        """Take the signals; returns who had them. Raises ValueError outside the main thread."""
        before: dict[int, Any] = {signum: signal.signal(signum, self.handle) for signum in _SIGNALS}
        self._is_installed = True
        return before

    def handle(self, _signum: int, _frame: Any) -> None:
        again, self._asked = self._asked, True
        if again or not self._is_orderly:
            raise KeyboardInterrupt
        with suppress(OSError, ValueError):  # nobody reads it any more
            sys.stderr.write("\nstopping after this step; once more, and the samples under way are given up\n")
            sys.stderr.flush()


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """Signals go to the Stop that is given. Outside the main thread the embedding program handles them."""
    stop = Stop()
    try:
        before = stop.install()
    except ValueError:
        yield stop
        return
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
