"""Opening a shard's data file, and what may stand in the way."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

from extractor.errors import OpenFilesError, StoreError
from extractor.store.remedy import run_repair


def open_to_read(file: Path, store: Path) -> int:
    """A descriptor of a file of `store`. Raises StoreError when it is gone or must not be read, OpenFilesError at a
    limit."""
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise StoreError(
            f"shard {file.parent.name} has lost its {file.name}",
            f"restore {file} from a copy",
            f"{run_repair(store)} to give its samples up",
        ) from None
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise OpenFilesError(f"{file} can't be opened: {_own_limit()}") from error
        if error.errno == errno.ENFILE:
            raise OpenFilesError(
                f"{file} can't be opened: the whole system has as many files open as it allows (sysctl fs.file-max, "
                "not `ulimit -n`); end other processes, or have an administrator raise it"
            ) from error
        raise StoreError(f"{file} can't be opened: {error}; make it readable") from error


def _own_limit() -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"this process may have {soft:,} files open and does, and each shard of a store that is read takes one; raise "
        f"the limit in the shell that starts it (`ulimit -n {hard}` is the most without an administrator)"
    )
