"""What the operating system refused, as one line: what, where, and what to do."""

from __future__ import annotations

import errno
import os

_AGAIN = "then run the same command again"
_ADVICE = {
    errno.ENOSPC: f"free some space, or use another disk, {_AGAIN}",
    errno.EDQUOT: f"free some space, or have the quota raised, {_AGAIN}",
    errno.EFBIG: f"raise the limit on file sizes (`ulimit -f`), or use another disk, {_AGAIN}",
    errno.EACCES: f"get the permission, or use another path, {_AGAIN}",
    errno.EPERM: f"get the permission, or use another path, {_AGAIN}",
    errno.EROFS: "that filesystem can only be read; use another path",
    errno.ENOENT: "check the path; folders in it must exist",
    errno.ENOTDIR: "a part of the path is a file; check the path",
    errno.EISDIR: "that is a folder, and a file is needed; check the path",
    errno.EEXIST: "use another path",
    errno.ENAMETOOLONG: "use a shorter path",
    errno.EMFILE: f"raise the limit on open files (`ulimit -n`), {_AGAIN}",
    errno.ENOMEM: f"free some memory, {_AGAIN}",
    errno.EIO: "the disk or the network to it fails; look into the system's log",
    errno.ESTALE: f"mount the filesystem again, {_AGAIN}",
}


def describe(error: OSError) -> str:
    """`error` for a person."""
    what = (error.strerror or str(error) or type(error).__name__).replace("\n", " ")
    where = _files(error)
    advice = _ADVICE.get(error.errno or 0, f"correct the cause, {_AGAIN}")
    return f"{where}: {what}; {advice}" if where else f"{what}; {advice}"


def _files(error: OSError) -> str:
    files = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    return " -> ".join(files)
