"""stdout and stderr when they are closed, full, or can't take a character: a sentence, never a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, TextIO

NAMES = ("stdin", "stdout", "stderr")
SIGPIPE_EXIT = 141  # 128 + SIGPIPE: what shells report for a program whose reader has gone


def prepare_streams() -> None:
    """Give a closed stream the null device, name a stream in its errors, and print what its encoding lacks as escapes.

    Whatever a process opens next takes a closed descriptor's number: without this, what a library prints to
    descriptor 1 would go into a shard.
    """
    for descriptor, name in enumerate(NAMES):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _null(descriptor))
        elif name != "stdin" and type(stream) is io.TextIOWrapper and not _is_named(stream):
            stream.flush()
            setattr(sys, name, _named(stream, name))


def flush_results() -> None:
    """Write out what was printed. At the interpreter's own exit it is too late for a message. Raises OSError."""
    sys.stdout.flush()


def tell(message: str) -> None:
    """One line on stderr, if that can be written."""
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def silence() -> None:
    """Send what is still in the buffers nowhere, so that the interpreter's exit does not fail on it again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError), open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), stream.fileno())


def _null(descriptor: int) -> TextIO:
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    return open(descriptor, "r" if descriptor == 0 else "w", encoding="utf-8", closefd=False)


def _is_named(stream: io.TextIOWrapper) -> bool:
    return isinstance(getattr(stream.buffer, "raw", stream.buffer), _Named)


def _named(stream: io.TextIOWrapper, name: str) -> TextIO:
    raw = _Named(stream.fileno(), "wb", closefd=False)
    raw.called = name
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering or stream.write_through or name == "stderr",
    )


class _Named(io.FileIO):
    """A stream whose errors carry its name, as those of files do."""

    called = ""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = self.called
            raise
