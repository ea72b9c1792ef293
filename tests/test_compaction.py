"""What `compact` needs, and what a crash of it leaves."""

from __future__ import annotations

import errno
import os

import pytest
from store_samples import a_manifest, assert_same_rows, rows_of, seal

from extractor import compaction
from extractor.compaction import compact
from extractor.errors import DiskFullError, StoreError
from extractor.integrity import check_store
from extractor.store import ShardWriter, Store, WriterOptions, prepare_store
from extractor.store.lock import RunLock

MANIFEST = a_manifest()
OPTIONS = WriterOptions(tile_bytes=1 << 16, group_bytes=1 << 20, lanes=1)


def assert_holds(path, samples):
    """The store holds exactly these samples with the values that were written, and is sound."""
    store = prepare_store(path, MANIFEST)
    assert set(store) == set(samples)
    store = Store.open(path, check=True)
    for name, rows in samples.items():
        assert_same_rows(store[name].hidden_states, rows)
    assert check_store(path).ok


def names(path):
    return sorted(folder.name for folder in path.glob("*shard-*"))


@pytest.fixture
def wasteful(tmp_path):
    """(path, samples) of four shards, each with a dead part and a sample, and a fifth that is all dead."""
    path = prepare_store(tmp_path / "s", MANIFEST).path
    samples = {f"s{n}": rows_of(n, 8000 + 100 * n, MANIFEST) for n in range(4)}
    for name, rows in samples.items():
        with ShardWriter(path, run_id=name, writer=0, options=OPTIONS) as writer:
            writer.write_rows("dead", 0, rows[:2000])
            writer.discard("dead")
            writer.write_rows(name, 0, rows)
            seal(writer, name, rows)
    with ShardWriter(path, run_id="dead", writer=0, options=OPTIONS) as writer:
        writer.write_rows("dead", 0, rows_of(9, 500, MANIFEST))
    return path, samples


@pytest.fixture
def disk(wasteful, monkeypatch):
    """limit(n): a disk on which n bytes are free now. LMDB's files grow by posix_fallocate."""
    path, _ = wasteful
    reserve = os.posix_fallocate
    limit = []

    def used():
        return sum(file.stat().st_blocks * 512 for file in path.glob("*/data.mdb"))

    def fallocate(fd, start, size):
        if start + size - os.fstat(fd).st_blocks * 512 > limit[0] - used():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(fd, start, size)

    monkeypatch.setattr("extractor.disk.free_bytes", lambda _: limit[0] - used())
    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    return lambda free: limit.append(used() + free)


def test_room_for_one_shard_is_enough(wasteful, disk):
    path, samples = wasteful
    largest = max(shard.file_bytes for shard in Store.open(path).shards)
    disk(int(1.3 * largest))
    done = compact(path)
    assert (done.rewritten, done.samples) == ([f"shard-000{n}" for n in range(5)], 4)
    assert sum(shard.dead_bytes for shard in Store.open(path).shards) == 0
    assert_holds(path, samples)


def test_without_room_what_needs_none_is_given_back(wasteful, disk):
    path, samples = wasteful
    disk(200_000)
    with pytest.raises(DiskFullError, match=r"needs [\d,]+ bytes .*then compact again"):
        compact(path)
    assert names(path) == [f"shard-000{n}" for n in range(4)], "the dead one is gone, and no copy was begun"
    assert_holds(path, samples)


def test_no_run_starts_meanwhile(wasteful, monkeypatch):
    path, samples = wasteful
    remove = compaction._remove

    def look(*args):
        with pytest.raises(StoreError, match=f"by process {os.getpid()}"):
            RunLock(path, shared=False)
        looks.append(args)
        remove(*args)

    looks = []
    monkeypatch.setattr(compaction, "_remove", look)
    compact(path)
    assert len(looks) >= 5
    RunLock(path, shared=False).__exit__()
    assert_holds(path, samples)
