"""The command that gives up what is damaged, put into the errors of a store's files by whoever knows the store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from extractor.errors import CorruptError
from extractor.shell import shell_command


def run_repair(store: Path) -> str:
    """The advice. A part is repaired through the store that it belongs to."""
    return f"run `{shell_command('extractor', 'verify', store, '--repair')}`"


@contextlib.contextmanager
def naming_repair(store: Path) -> Iterator[None]:
    """Add the advice to a CorruptError that does not have it yet."""
    try:
        yield
    except CorruptError as error:
        remedy = run_repair(store)
        if remedy not in error.args:
            error.args = (*(error.args or ("damaged",)), remedy)
        raise
