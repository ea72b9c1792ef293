"""How a shard's LMDB environment is opened: the one place that decides what survives what."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from extractor.errors import StoreError

# LMDB 0.9's file format, which every LMDB tool reads; the 1.0 engine was not faster.
_FORMAT = 0
_BIG_DATA = 0x01  # the flag of a node whose value has pages of its own
TABLES = (b"shard", b"tiles", b"seals", b"index", b"summary", b"manifest")


def open_environment(path: Path, map_bytes: int) -> Any:
    """No writemap: on a full disk it would kill the process by SIGBUS. No metasync: the data of a group is durable when
    its commit returns, its root with the next group or `sync`; a power cut undoes that one group at most. Pages are
    cleared (`meminit`, the default): else what the process's memory held before would stand between their entries, for
    whoever is given the store to read."""
    return lmdb.open(
        str(path),
        map_size=map_bytes,
        max_dbs=len(TABLES),
        metasync=False,
        lib_version=_FORMAT,
    )


def page_of_value(cursor: Any) -> int:
    """Page number of the value under the cursor: in LMDB's leaf node it follows the key. py-lmdb's own access to the
    value would touch each of its pages."""
    key = np.frombuffer(cursor.key(), np.uint8)
    address = key.ctypes.data
    if not ctypes.c_uint16.from_address(address - 4).value & _BIG_DATA:
        raise StoreError("LMDB kept a value inside a leaf page; use the lmdb package >= 3.0")
    return ctypes.c_uint64.from_address(address + key.size).value
