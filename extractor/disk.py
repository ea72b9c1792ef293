"""Room on the filesystem of a path: what an ordinary user may still write there, quotas and reserved blocks included.

`extract` calls `require_room` at its start and again while it runs; `plan` shows the parts.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from extractor.errors import DiskFullError, StoreError
from extractor.sizes import size

# quotactl_fd(2): the same number on every architecture. Older kernels (before 5.14) answer ENOSYS: no quota is known.
_QUOTACTL_FD = 443
_GET_QUOTA = 0x800007
_USER, _GROUP = 0, 1
_QUOTA_BLOCK_BYTES = 1024

# Of one sample beside its tiles' bytes: a seal (5 bytes a token, 512 of its own) and a page of rounding for it and for
# each tile (4 MiB, or the half of one at the end of what a step brings). Real stores stay below it by less than 0.3%
# for samples of 100 rows and more.
_SEAL_BYTES_PER_TOKEN = 5
_SEAL_BYTES = 512
_PAGE_BYTES = 4096
_TILE_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Bytes on one filesystem. `free_bytes` is what may be written: `quota_left_bytes` (None: no quota) is a bound of
    it, and `reserved_bytes`, which only root may use, are not in it."""

    total_bytes: int
    free_bytes: int
    reserved_bytes: int
    quota_left_bytes: int | None


class _Quota(ctypes.Structure):
    """struct if_dqblk of <sys/quota.h>: limits in blocks of 1,024 bytes (0 = none), `space` in bytes."""

    _fields_ = (
        ("hard", ctypes.c_uint64),
        ("soft", ctypes.c_uint64),
        ("space", ctypes.c_uint64),
        ("inodes", ctypes.c_uint64 * 5),
        ("valid", ctypes.c_uint32),
    )


def disk_space(path: Path | str) -> DiskSpace:
    """Room where `path` lies, or will lie: its nearest existing parent answers. Raises StoreError."""
    existing = existing_parent(Path(path))
    try:
        stat = os.statvfs(existing)
        quota = _quota_left(existing)
    except OSError as error:
        raise StoreError(
            f"the filesystem of {path} does not answer ({error.strerror}); check that it is still mounted, "
            "then run again"
        ) from error
    free = stat.f_bavail * stat.f_frsize
    return DiskSpace(
        total_bytes=stat.f_blocks * stat.f_frsize,
        free_bytes=free if quota is None else min(free, quota),
        reserved_bytes=(stat.f_bfree - stat.f_bavail) * stat.f_frsize,
        quota_left_bytes=quota,
    )


def store_bytes(samples: int, tokens: int, size_bytes: int) -> int:
    """An upper bound of what a store of them occupies, `size_bytes` being the stored bytes of their rows."""
    tiles = size_bytes // _TILE_BYTES + samples
    records = samples * _SEAL_BYTES + tokens * _SEAL_BYTES_PER_TOKEN
    return size_bytes + records + (tiles + samples) * _PAGE_BYTES


def free_bytes(path: Path | str) -> int:
    """Bytes that may still be written where `path` lies. Raises StoreError when its filesystem does not answer."""
    return disk_space(path).free_bytes


def require_room(
    path: Path | str,
    need_bytes: int,
    force: bool = False,
    remedy: str = "choose another --out, or pass --force to start all the same",
) -> int:
    """The free bytes where `path` lies. Raises DiskFullError when `need_bytes` is more, unless `force`; it tells to
    make room and `remedy`."""
    free = free_bytes(path)
    if need_bytes > free and not force:
        raise DiskFullError(
            f"{path} needs {need_bytes:,} bytes ({size(need_bytes)}) but its filesystem has {free:,} bytes free "
            f"({size(free)}), {need_bytes - free:,} too few; make room (`extractor plan --out` lists stores that "
            f"can go), {remedy}"
        )
    return free


class RoomWatch:
    """Looks again while a run writes: others fill disks, too. It warns and lets the run go on, since what is sealed is
    safe and room may be made in time; a disk that is really full stops the run by itself."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._warned = False

    def check(self, left_bytes: int) -> bool:
        """Whether `left_bytes`, still to be written, fit. Warns when they no longer do, once until they fit again."""
        free = free_bytes(self._path)
        short = left_bytes > free
        if short and not self._warned:
            warnings.warn(
                f"{self._path} still needs {left_bytes:,} bytes ({size(left_bytes)}), but only {free:,} bytes "
                f"({size(free)}) are free now; make room while the run goes on (`extractor plan --out` lists "
                "stores that can go)",
                stacklevel=2,
            )
        self._warned = short
        return not short


def existing_parent(path: Path) -> Path:
    """`path` or the nearest parent that exists. Raises StoreError when not even that can be looked at."""
    path = path.absolute()
    try:
        return next(p for p in (path, *path.parents) if p.exists())
    except OSError as error:
        raise StoreError(f"{path} can't be reached ({error.strerror}); check the path and its permissions") from error


def _quota_left(path: Path) -> int | None:
    """The least that the user's and the group's quota leave at `path`; None where there is neither."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        left = [_left(descriptor, kind, who) for kind, who in ((_USER, os.getuid()), (_GROUP, os.getgid()))]
    finally:
        os.close(descriptor)
    return min((bytes_ for bytes_ in left if bytes_ is not None), default=None)


def _left(descriptor: int, kind: int, who: int) -> int | None:
    quota = _Quota()
    libc = ctypes.CDLL(None, use_errno=True)
    command = ctypes.c_uint(_GET_QUOTA << 8 | kind)
    if libc.syscall(ctypes.c_long(_QUOTACTL_FD), descriptor, command, ctypes.c_uint(who), ctypes.byref(quota)) != 0:
        return None
    limit = (quota.hard or quota.soft) * _QUOTA_BLOCK_BYTES
    return max(0, limit - quota.space) if limit else None
