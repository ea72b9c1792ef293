"""Maintenance commands beside each other, beside readers, and on a disk that refuses what they ask of it."""

from __future__ import annotations

import errno
import os
import shutil

import pytest
from store_samples import a_manifest, assert_same_rows, rows_of, write_samples

from extractor import integrity
from extractor.compaction import compact
from extractor.errors import StoreError
from extractor.integrity import check_store
from extractor.repair import repair
from extractor.replicas.gathering import gather
from extractor.store import Store, prepare_store
from extractor.store.disk import write_atomically
from extractor.store.lock import RunLock, WriterLock
from extractor.store.shard_file import ShardFile

MANIFEST = a_manifest()
SAMPLES = {f"s{n}": rows_of(n, 40, MANIFEST) for n in range(4)}


@pytest.fixture
def path(tmp_path):
    """Two shards, each with a rejected sample, so that a compact rewrites both."""
    path = prepare_store(tmp_path / "s", MANIFEST).path
    for n in (0, 2):
        write_samples(path, {f"s{n}": SAMPLES[f"s{n}"], f"s{n + 1}": SAMPLES[f"s{n + 1}"]}, run_id=f"r{n}")
        damage(path, f"s{n + 1}")
    repair(path, check_store(path))
    return path


def damage(path, name):
    sample = Store.open(path)[name]
    with (path / sample.shard_name / "data.mdb").open("r+b") as handle:
        handle.seek(int(sample.seal.tiles[0]["offset"]))
        handle.write(b"\0\1\2\3")


def assert_holds(path, names):
    store = Store.open(path, check=True)
    assert set(store) == set(names)
    for name in names:
        assert_same_rows(store[name].hidden_states, SAMPLES[name])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_reader_that_opens_while_a_compact_removes_shards_misses_nothing(path, monkeypatch, when):
    """The shards were looked for before the copy was there, and opened when the originals no longer were; or they were
    listed when these still were."""
    listing, compacted = ShardFile.listing, []

    def compact_once():
        if not compacted:
            compacted.append(1)
            compact(path, min_dead_share=0)

    def list_beside(self, fingerprint):
        if when == "before":
            compact_once()
        found = listing(self, fingerprint)
        compact_once()
        return found

    monkeypatch.setattr(ShardFile, "listing", list_beside)
    store = Store.quietly(path, check=True)
    assert compacted
    assert store.problems == {}
    assert set(store) == {"s0", "s2"}
    for name in ("s0", "s2"):
        assert_same_rows(store[name].hidden_states, SAMPLES[name])


def test_a_check_finds_nothing_wrong_with_what_a_compact_removes(path, monkeypatch):
    walk = integrity.walking

    def compact_first(files, workers):
        compact(path, min_dead_share=0)
        return walk(files, workers)

    monkeypatch.setattr(integrity, "walking", compact_first)
    report = check_store(path)
    assert report.findings == []
    assert report.checked_samples == 2


def test_a_lost_shard_is_still_lost(path):
    shutil.rmtree(path / "shard-0001")
    store = Store.quietly(path)
    assert list(store.problems) == ["shard-0001"]
    assert set(store) == {"s0"}


@pytest.mark.parametrize("whole", [True, False], ids=["shard", "sample"])
def test_a_repair_ignores_what_was_compacted_since_the_check(path, whole):
    write_samples(path, {"s1": SAMPLES["s1"]}, run_id="redo")
    if whole:
        with (path / "shard-0001" / "data.mdb").open("r+b") as handle:
            handle.write(bytes(4096))
    else:
        damage(path, "s2")
    report = check_store(path)
    repair(path, report)
    compact(path, min_dead_share=0)
    done = repair(path, report)
    assert (done.shards, done.redo, done.saved) == ([], [], [])
    assert_holds(path, {"s0", "s1", "s2"} if whole else {"s0", "s1"})
    assert check_store(path).ok


@pytest.mark.parametrize("command", [gather, compact])
def test_one_command_changes_a_store_at_a_time(path, command):
    with RunLock(path, shared=False), pytest.raises(StoreError, match=str(os.getpid())):
        command(path)
    command(path)


def refuse(number):
    def call(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_a_lock_needs_no_room(path, monkeypatch, call):
    """The process id in it is for messages only; on a full disk a compact may still give something back."""
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse(errno.ENOSPC))
        with RunLock(path, shared=False), pytest.raises(StoreError, match="in use by process"):
            RunLock(path, shared=False)
        WriterLock(path, "r", 0).release()
    RunLock(path, shared=False).__exit__()


def test_a_lock_file_that_stays_hides_no_error(path, monkeypatch):
    lock = WriterLock(path, "r", 0)
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.unlink", refuse(errno.EROFS))
        lock.release()
    WriterLock(path, "r", 0).release()


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.replace"])
def test_a_list_that_can_not_be_replaced_leaves_nothing_behind(path, monkeypatch, call):
    before = sorted(path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(call, refuse(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left") as caught:
            write_atomically(path / "rejects.jsonl", "")
    assert caught.value.filename == str(path / "rejects.jsonl")
    assert sorted(path.iterdir()) == before


def test_a_compact_clears_away_shards_that_never_got_a_name(path):
    (path / ".new-r-0-1").mkdir()
    (path / ".new-r-0-1" / "data.mdb").write_bytes(bytes(4096))
    compact(path)
    assert not (path / ".new-r-0-1").exists()
