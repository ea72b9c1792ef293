"""One run per store, and one writer per run and rank: lock files that name their holders."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from extractor.errors import StoreError

_PREFIX = ".writer-"
_ATTEMPTS = 4
_run_locks: set[int] = set()  # descriptors that this process holds
_RUN = _PREFIX + "run-0"  # named as writers are, so that all who look for these find a run before its writers start


class WriterLock:
    """Held from construction to `release` or the end of the process, whatever ends it."""

    def __init__(self, store: Path, run_id: str, writer: int) -> None:
        """Raises StoreError with the holder's process id when a live process holds it."""
        self._path = store / f"{_PREFIX}{run_id}-{writer}"
        self._fd = _open(self._path)
        while (locked := _try_lock(self._fd)) and not _is_at(self._fd, self._path):
            os.close(self._fd)  # `_clear_dead` of another writer removed it between our opening and locking
            self._fd = _open(self._path)
        if not locked:
            holder = _holder(self._fd)
            os.close(self._fd)
            raise StoreError(
                f"writer {writer} of run {run_id} in {store} is in use by process {holder}; one process may write a "
                "shard; wait for it, or stop it and start again"
            )
        _name_holder(self._fd)
        _clear_dead(store, self._path)

    def release(self) -> None:
        with contextlib.suppress(OSError):  # left, the file is cleared away by the next run's writer
            self._path.unlink()
        os.close(self._fd)


class RunLock:
    """Held by whoever changes a store, and by a run from before its model is loaded on: two runs would both compute
    everything."""

    def __init__(self, store: Path, *, shared: bool) -> None:
        """`shared`: with other processes that do other parts. Raises StoreError with the holder's process id."""
        self._fd = _open(store / _RUN)
        if not _try_lock(self._fd, shared=shared):
            holder = _holder(self._fd)
            os.close(self._fd)
            raise StoreError(
                f"{store} is in use by process {holder}, an extract, import, gather, repair or compact, and one may "
                "change a store at a time; wait for it, or stop it and run the same command again"
            )
        _run_locks.add(self._fd)
        _name_holder(self._fd)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        _run_locks.discard(self._fd)
        os.close(self._fd)  # the file stays: removing it would let a second process lock a name that is gone


def _leave_to_the_parent() -> None:
    """An engine's forked ranks outlive a killed parent for a while; the lock shall not."""
    while _run_locks:
        os.close(_run_locks.pop())


os.register_at_fork(after_in_child=_leave_to_the_parent)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"{path.parent} can't be written: {error}; pass a store that you may write to") from error


def _is_at(fd: int, path: Path) -> bool:
    """Whether `path` is still the file that is open."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _clear_dead(store: Path, own: Path) -> None:
    """Remove the files that killed writers of other runs left. Each is locked while it goes. An empty one is left: its
    writer is about to lock it, and would take us for the holder."""
    for path in store.glob(f"{_PREFIX}*"):
        if path == store / _RUN or _run_of(path) == _run_of(own):
            continue
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if os.fstat(fd).st_size and _try_lock(fd):
                    path.unlink()
            finally:
                os.close(fd)


def _run_of(lock: Path) -> str:
    return lock.name.rpartition("-")[0]


def live_writers(store: Path) -> list[str]:
    """Process ids of the writers at work in `store`."""
    found = []
    for path in store.glob(f"{_PREFIX}*"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # released since it was listed
            continue
        if not _try_lock(fd, shared=True):
            found.append(_holder(fd))
        os.close(fd)
    return found


def require_no_writers(store: Path, purpose: str) -> None:
    """Raise StoreError naming the processes while a run is writing."""
    pids = sorted(set(live_writers(store)))
    if pids:
        raise StoreError(
            f"{store} is being written by process {', '.join(pids)}; {purpose} needs it alone; wait for the run to end"
        )


def _try_lock(fd: int, *, shared: bool = False) -> bool:
    """Whether the lock is had. Asks a few times: who only looks for writers holds it for a moment."""
    for attempt in range(_ATTEMPTS):
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.005 * attempt)
        except OSError as error:
            raise StoreError(
                f"the file system of {os.readlink(f'/proc/self/fd/{fd}')} gives no locks ({error}), so that two runs "
                "could write one store; write to a local disk and copy the finished store"
            ) from error
        else:
            return True
    return False


def _name_holder(fd: int) -> None:
    """For messages only: on a full disk the lock holds all the same."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)


def _holder(fd: int) -> str:
    return os.pread(fd, 64, 0).decode() or "unknown"
