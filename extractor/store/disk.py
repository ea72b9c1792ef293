"""What the store needs from the file system: room, durability, and names for what goes wrong."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from extractor.disk import free_bytes
from extractor.errors import DiskFullError, StoreError
from extractor.output import sync_folder as sync_folder  # with the other things that a store asks of the file system

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "fuse.sshfs")


def reserve(fd: int, start: int, size: int) -> None:
    """Allocate `size` bytes at `start` before anything is written there, so that a full disk is found while nothing
    is lost. Raises OSError. File systems without allocation are left to fail at the write."""
    try:
        os.posix_fallocate(fd, start, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


@contextmanager
def writing(path: Path, needed: int) -> Iterator[None]:
    """Turn what LMDB and the system report while `needed` bytes are written to `path` into the store's errors.

    LMDB reports a short write, which is what a full disk gives, as an I/O error: then the free space tells.
    """
    try:
        yield
    except (lmdb.Error, OSError) as error:
        is_full = isinstance(error, lmdb.DiskError) or (isinstance(error, OSError) and error.errno in _FULL)
        if is_full or _free_bytes(path) < needed:
            raise DiskFullError(
                f"no room to write {needed:,} bytes to {path} ({_free_bytes(path):,} bytes free); all samples sealed "
                "before are safe; free space and run the same command again"
            ) from error
        raise StoreError(
            f"writing {path} failed: {error}; all samples sealed before are safe; check the disk (dmesg, smartctl) and "
            "run the same command again"
        ) from error


def _free_bytes(path: Path) -> int:
    try:
        return free_bytes(path)
    except StoreError:
        return 0


def write_atomically(file: Path, text: str) -> None:
    """Replace `file` by `text` so that after a crash either the old or the new content is there. Raises OSError."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(file)
        sync_folder(file.parent)
    except OSError as error:
        error.filename = error.filename or str(file)  # a failing sync does not say which
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def network_kind(path: Path, mounts: str = "/proc/self/mounts") -> str | None:
    """The file system's name when `path` lies on a network mount, else None."""
    try:
        lines = Path(mounts).read_text().splitlines()
    except OSError:
        return None
    target = str(path.resolve())
    best = ("", "")
    for fields in (line.split() for line in lines):
        point = fields[1].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, fields[2])
    return best[1] if best[1] in _NETWORK else None
