"""Run under faults.c: write the workload with every write recorded, then cut the power at random points of the record.

What survives a cut: everything written before the file's last sync, and of the later writes any subset of 512-byte
sectors. Prints {"operations": how many were recorded, "wrong": what was wrong after which cut}.
"""

from __future__ import annotations

import ctypes
import json
import random
import shutil
import struct
import sys
from pathlib import Path

from workload import MANIFEST, assert_whole, write_missing

from extractor.errors import StoreError
from extractor.store import prepare_store

RECORD = struct.Struct("<QQQQ")
WRITE, SYNC, MARK, TRUNCATE, PUBLISH = 1, 2, 3, 4, 5
SECTOR = 512


def record_run(root, sync):
    """Write everything; returns (path, log of operations). Marks carry how many samples were acknowledged so far."""
    library = ctypes.CDLL(None)
    path = prepare_store(root / "s", MANIFEST).path
    library.faults_log(str(root / "log").encode())
    acknowledged = []

    def acknowledge(names):
        acknowledged.extend(names)
        library.faults_mark(ctypes.c_uint64(len(acknowledged)))

    write_missing(path, "r", acknowledge)
    return path, acknowledged, read_log((root / "log").read_bytes(), sync)


def read_log(data, sync):
    operations, at = [], 0
    while at < len(data):
        kind, file, offset, size = RECORD.unpack_from(data, at)
        at += RECORD.size
        payload = data[at : at + size] if kind == WRITE else b""
        at += len(payload)
        if kind != SYNC or sync:
            operations.append((kind, file, offset, payload))
    return operations


def disk_after_cut(operations, rng):
    """({inode of a shard's data file: its bytes}, samples acknowledged) after a cut behind the given operations."""
    acknowledged = 0
    files, unsynced, published = {}, {}, set()
    for kind, file, offset, payload in operations:
        if kind == MARK:
            acknowledged = offset
        elif kind == PUBLISH:
            published.add(file)
        elif kind == SYNC:
            apply(files.setdefault(file, bytearray()), unsynced.pop(file, []))
        else:
            unsynced.setdefault(file, []).append((kind, offset, payload))
    for file, pending in unsynced.items():
        apply(files.setdefault(file, bytearray()), survivors(pending, rng))
    return {file: image for file, image in files.items() if file in published}, acknowledged


def survivors(pending, rng):
    """A random subset of the sectors of the pending writes; sometimes all, sometimes whole writes only."""
    share = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
    whole = rng.random() < 0.5
    for kind, offset, payload in pending:
        if kind == TRUNCATE or whole:
            if rng.random() < share:
                yield kind, offset, payload
            continue
        for start in range(0, len(payload), SECTOR):
            if rng.random() < share:
                yield kind, offset + start, payload[start : start + SECTOR]


def apply(image, writes):
    for kind, offset, payload in writes:
        if kind == TRUNCATE:
            del image[offset:]
            image.extend(bytes(offset - len(image)))
            continue
        image.extend(bytes(max(0, offset + len(payload) - len(image))))
        image[offset : offset + len(payload)] = payload


def examine(path, data_files, files, expected):
    """None when the store is as it must be after the cut, else what is wrong."""
    for file, inode in data_files.items():
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(files[inode]) if inode in files else shutil.rmtree(file.parent)
    names = [file.parent.name + "\n" for file, inode in data_files.items() if inode in files]
    (path / "shards.txt").write_text("".join(names))
    try:
        store = prepare_store(path, MANIFEST)
        assert_whole(store, expected)
    except (AssertionError, StoreError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def main(root, cuts, sync):
    path, acknowledged, operations = record_run(Path(root), sync)
    data_files = {file: file.stat().st_ino for file in sorted(path.glob("shard-*/data.mdb"))}
    created = [n for n, op in enumerate(operations) if op[0] != MARK]
    rng = random.Random(0)
    wrong = []
    for _ in range(cuts):
        end = rng.choice(created)
        files, count = disk_after_cut(operations[: end + 1], rng)
        problem = examine(path, data_files, files, acknowledged[:count])
        if problem:
            wrong.append(problem)
    return {"operations": len(operations), "wrong": wrong}


if __name__ == "__main__":
    json.dump(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "sync"), sys.stdout)
