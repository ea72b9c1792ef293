"""How a shard's LMDB environment is opened: the one place that decides what survives what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb

# LMDB 0.9's file format, which every LMDB tool reads; the 1.0 engine was not faster.
_FORMAT = 0
TABLES = (b"shard", b"tiles", b"seals", b"index")


def open_environment(path: Path, map_bytes: int) -> Any:
    """No writemap: on a full disk it would kill the process by SIGBUS. No metasync: the data of a group is durable when
    its commit returns, its root with the next group or `sync`; a power cut undoes that one group at most."""
    return lmdb.open(
        str(path),
        map_size=map_bytes,
        max_dbs=len(TABLES),
        metasync=False,
        meminit=False,
        lib_version=_FORMAT,
    )
