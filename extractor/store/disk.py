"""What the store needs from the file system: room, durability, and names for what goes wrong."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from extractor.errors import DiskFullError, StoreError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "fuse.sshfs")


def reserve(fd: int, start: int, size: int, path: Path) -> None:
    """Allocate `size` bytes at `start` before anything is written there, so that a full disk is found while nothing
    is lost. Raises DiskFullError. File systems without allocation are left to fail at the write."""
    try:
        os.posix_fallocate(fd, start, size)
    except OSError as error:
        if error.errno in _FULL:
            raise full(path, size) from error
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise failed(path, error) from error


def full(path: Path, needed: int) -> DiskFullError:
    return DiskFullError(
        f"no room to write {needed:,} bytes to {path} ({free_bytes(path):,} bytes free); all samples sealed before are "
        "safe; free space and run the same command again"
    )


def failed(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"writing {path} failed: {error}; all samples sealed before are safe; check the disk (dmesg, smartctl) and run "
        "the same command again"
    )


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write to the file system that holds `path`; 0 when it can't be asked."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(file: Path, text: str) -> None:
    """Replace `file` by `text` so that after a crash either the old or the new content is there."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(file)
    sync_folder(file.parent)


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
