"""Which LMDB environments this process has open. LMDB forbids opening one twice, so a reader in the writer's process
borrows the writer's; others open their own just for as long as they list it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from extractor.errors import CorruptError, StoreError
from extractor.store.layout import DATA_FILE, LOCK_FILE

_open: dict[str, Any] = {}
_guard = threading.Lock()
# A fork while another thread holds the guard would leave it locked in the child for ever.
os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_guard.release)
_FORMAT = 0  # LMDB 0.9, the format that every LMDB tool reads; 1.0 was not faster


def open_for_writing(path: Path, map_bytes: int, max_readers: int) -> Any:
    """No writemap (a full disk would kill the process by SIGBUS) and no metasync: the root of a group becomes durable
    with the next group or `sync`, its data before the commit returns."""
    with _guard:
        env = lmdb.open(
            str(path),
            map_size=map_bytes,
            max_dbs=4,
            max_readers=max_readers,
            metasync=False,
            meminit=False,
            lib_version=_FORMAT,
        )
        _open[str(path.resolve())] = env
    return env


def close(path: Path, env: Any) -> None:
    with _guard:
        _open.pop(str(path.resolve()), None)
        env.close()


@contextmanager
def listing(path: Path) -> Iterator[Any]:
    """A read-only environment for a short look. Raises CorruptError when it can't be opened."""
    with _guard:
        writing = _open.get(str(path.resolve()))
        env = writing or _open_for_reading(path)
        try:
            yield env
        except lmdb.Error as error:
            raise CorruptError(f"{path / DATA_FILE} is damaged ({error}); run `extractor verify --repair`") from error
        finally:
            if env is not writing:
                env.close()


def _open_for_reading(path: Path) -> Any:
    file = path / DATA_FILE
    if not file.is_file():
        raise StoreError(
            f"shard {path.name} has lost its {DATA_FILE}; restore {file} from a copy, or run `extractor verify "
            "--repair` to give its samples up"
        )
    # The lock file is there while a writer is. Without one nothing changes, and read-only media need no lock.
    if (path / LOCK_FILE).exists():
        try:
            return _checked(_open_env(path, lock=True), file)
        except lmdb.Error as error:
            if os.access(path / LOCK_FILE, os.W_OK):
                raise _damaged(file, error) from error
    try:
        return _checked(_open_env(path, lock=False), file)
    except lmdb.Error as error:
        raise _damaged(file, error) from error


def _open_env(path: Path, *, lock: bool) -> Any:
    return lmdb.open(str(path), readonly=True, create=False, lock=lock, max_dbs=4, readahead=True)


def _checked(env: Any, file: Path) -> Any:
    """Refuse a file that is shorter than its root says: touching what is missing would end the process by SIGBUS."""
    needed = (int(env.info()["last_pgno"]) + 1) * int(env.stat()["psize"])
    if file.stat().st_size < needed:
        env.close()
        raise CorruptError(
            f"{file} is {file.stat().st_size:,} bytes, its data needs {needed:,}; it was cut off; restore it from a "
            "copy or run `extractor verify --repair`"
        )
    return env


def _damaged(file: Path, error: Exception) -> CorruptError:
    return CorruptError(f"{file} can't be opened ({error}); restore it from a copy or run `extractor verify --repair`")
