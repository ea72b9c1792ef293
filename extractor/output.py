"""Files that appear whole or not at all, last when they are reported, and what to say when they can't be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from extractor.errors import DiskFullError, StoreError

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around everything that writes `path`: an OSError becomes one that a person can act on."""
    try:
        yield
    except OSError as error:
        raise write_error(error, path) from error


def write_error(error: OSError, path: Path) -> StoreError:
    """What kept `path` from being written, and what to do."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"no room to write {path} ({reason}); free some, or pass another place")
    if error.errno == errno.EFBIG:
        return StoreError(
            f"{path} can't be written: a file of it is larger than this process may write; raise the limit (`ulimit "
            "-f`), or pass a place on a filesystem that takes larger files"
        )
    if error.errno in _FORBIDDEN:
        return StoreError(f"{path} can't be written ({reason}); change its permissions, or pass a place of your own")
    return StoreError(f"{path} can't be written ({reason}); pass a place where files can be made")


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write `path`; what stood there before stays until the new content is complete and durable. Raises StoreError."""
    with writing(path):
        _put(path, data, durable=True)
        sync_folder(path.parent)


def write_early(path: Path, data: bytes | memoryview) -> None:
    """Write one of many files: it appears whole, and lasts once it is given to `make_durable`. Raises StoreError."""
    with writing(path):
        _put(path, data, durable=False)


def make_durable(files: Iterable[Path]) -> None:
    """From now on a power cut leaves the files as they are, under their names. Raises OSError.

    Together it costs less than file by file: the system writes one while another is waited for.
    """
    files = list(files)
    for file in files:
        _sync(file, os.O_RDONLY)
    for folder in dict.fromkeys(file.parent for file in files):
        sync_folder(folder)


def make_folder(path: Path) -> None:
    """Make `path` and the folders above it that are missing, with names that last as files do. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def replace_all(scratch: Path, folder: Path, names: Sequence[str]) -> None:
    """Move the finished files `names` from `scratch`, on the same filesystem, into `folder`, durably: all of them, or,
    where one can't be moved, none, and the earlier files stand as before. A name that `scratch` lacks goes from
    `folder`. Raises OSError."""
    made = [name for name in names if (scratch / name).exists()]
    make_durable(scratch / name for name in made)
    with TemporaryDirectory(prefix=".replaced-", dir=scratch) as kept:
        moved: list[str] = []
        try:
            for name in names:
                _keep(folder / name, Path(kept) / name)
                if name in made:
                    os.replace(scratch / name, folder / name)
                else:
                    (folder / name).unlink(missing_ok=True)
                moved.append(name)
            sync_folder(folder)
        except BaseException:
            for name in names:
                _restore(Path(kept) / name, folder / name, name in moved)
            raise


def _put(path: Path, data: bytes | memoryview, *, durable: bool) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        make_folder(path.parent)
        temporary.write_bytes(data)
        if durable:
            _sync(temporary, os.O_RDONLY)
        temporary.replace(path)
    except BaseException:
        _forget(temporary)
        raise


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _keep(file: Path, kept: Path) -> None:
    """A second name, so that `file` is never missing; where there are no hard links, it moves."""
    if not file.is_file():
        return
    try:
        os.link(file, kept)
    except OSError:
        os.replace(file, kept)


def _restore(kept: Path, place: Path, moved: bool) -> None:
    if kept.exists():
        os.replace(kept, place)
    elif moved:
        place.unlink(missing_ok=True)


def _forget(file: Path) -> None:
    """The error under way matters more than one about a file that may never have been made."""
    try:
        file.unlink(missing_ok=True)
    except OSError:
        return
