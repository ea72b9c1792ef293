"""Worker processes that end with the process that they work for, however it ends."""

from __future__ import annotations

import os
import threading
from multiprocessing import connection, parent_process


def end_with_parent() -> None:
    """Watch the parent from a thread. A pool's worker waits for work for ever when its parent was killed: it holds the
    other end of its queue itself."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
