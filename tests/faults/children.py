"""Child processes that may die."""

from __future__ import annotations

import os
import traceback


def in_child(work):
    """Run work() in a forked process and return its process id; it exits 0, or 1 after an exception."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing may come back out of the child
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def exit_of(pid):
    """Exit code of a child, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
