"""One writer per run and rank: a lock file that names its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from extractor.errors import StoreError


class WriterLock:
    """Held from construction to `release` or the end of the process, whatever ends it."""

    def __init__(self, store: Path, run_id: str, writer: int) -> None:
        """Raises StoreError with the holder's process id when a live process holds it."""
        self._path = store / f".writer-{run_id}-{writer}"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 64, 0).decode() or "unknown"
            os.close(self._fd)
            raise StoreError(
                f"writer {writer} of run {run_id} in {store} is in use by process {holder}; one process may write a "
                "shard; wait for it, or stop it and start again"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._fd)
