"""Who has a store open: writers by their lock files, any process by the files that it holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from extractor.store.lock import live_writers

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class User:
    """A process that has `file` open. `pid` is 0 for a writer on another machine or in another container."""

    pid: int
    command: str
    file: Path

    def __str__(self) -> str:
        return (
            f"process {self.pid} ({self.command})"
            if self.pid
            else f"a process outside this container ({self.file.name})"
        )


def users(store: Path) -> list[User]:
    """Every process seen to have a file of `store` open or mapped, this one included. Processes of other users are
    seen by root only; a writer is always seen, by its lock."""
    found = {user.pid: user for user in _holders(store.resolve())}
    for text in live_writers(store):
        pid = int(text) if text.isdecimal() and (_PROC / text).exists() else 0
        found.setdefault(pid, User(pid, _command(pid), store))
    return list(found.values())


def _holders(store: Path) -> Iterator[User]:
    inside = str(store) + "/"
    for process in _PROC.iterdir():
        if process.name.isdecimal():
            file = next((name for name in _open_files(process) if name.startswith(inside)), None)
            if file is not None:
                yield User(int(process.name), _command(int(process.name)), Path(file))


def _open_files(process: Path) -> Iterator[str]:
    """Paths of open descriptors and mapped files; none when the process is gone or someone else's."""
    try:
        for descriptor in os.scandir(process / "fd"):
            yield os.readlink(descriptor.path)
        for line in (process / "maps").read_text().splitlines():
            if "/" in line:
                yield line[line.index("/") :]
    except OSError:
        return


def _command(pid: int) -> str:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "unknown"
    return " ".join(word.decode(errors="replace") for word in words[:3] if word) or "unknown"
