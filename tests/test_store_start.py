"""What stands in the way of a run's start or end: other runs, cut-off lists, a lane that fails when it is closed."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import threading

import numpy as np
import pytest
from store_cases import OPTIONS, a_manifest, a_store, add, content

from extractor.errors import FingerprintError, StoreError
from extractor.record import STATS
from extractor.store import ShardWriter, Store, prepare_store
from extractor.store import lock as lock_module
from extractor.store.lane import Lane
from extractor.store.layout import enlist, listed
from extractor.store.lock import RunLock, WriterLock, live_writers
from extractor.store.shard import Shard


@pytest.mark.parametrize("torn", ["s", "shard-", "shard-00", "shard-001"])
def test_a_cut_off_name_in_the_list_of_shards_stays_one(tmp_path, torn):
    """The next name began in the middle of the cut-off one's line, and the whole store was refused."""
    store = a_store(tmp_path / "s", {"a": 5}).path
    with (store / "shards.txt").open("a") as handle:
        handle.write(torn)
    assert listed(store) == {0}
    add(store, {"b": 7}, a_manifest(), "again")
    assert listed(store) == {0, 1}
    assert sorted(Store.open(store)) == ["a", "b"]
    assert (store / "shards.txt").read_text() == f"shard-0000\n{torn}\nshard-0001\n"


def test_other_lines_are_still_refused(tmp_path):
    store = a_store(tmp_path / "s", {"a": 5}).path
    (store / "shards.txt").write_text("shard-0000\nsomething\n")
    with pytest.raises(StoreError, match="has the line 'something'"):
        listed(store)


def test_the_list_begins_with_a_name(tmp_path):
    enlist(tmp_path, "shard-0007")
    assert (tmp_path / "shards.txt").read_text() == "shard-0007\n"


def test_a_lane_that_fails_when_it_is_closed_leaves_no_other_open(tmp_path, monkeypatch):
    """What the others had sealed was lost with them, and the writer's lock was kept."""
    before = set(threading.enumerate())
    manifest = a_manifest()
    store = prepare_store(tmp_path / "s", manifest).path
    monkeypatch.setattr(Lane, "is_busy", property(lambda self: True))  # so that the second one gets its turn
    options = dataclasses.replace(OPTIONS, lanes=2, commit_seconds=1e6)
    writer = ShardWriter(store, run_id="r", writer=0, options=options)
    close, failed = Shard.close, []

    def fail_first(self):
        close(self)
        if not failed:
            failed.append(self.path.name)
            raise StoreError("the disk failed")

    monkeypatch.setattr(Shard, "close", fail_first)
    names = [f"s{number}" for number in range(40)]
    for name in names:
        token_ids, loss_mask, rows = content(name, 60, manifest)
        writer.write_rows(name, 0, rows)
        writer.seal(name, token_ids=token_ids, loss_mask=loss_mask, stats=np.zeros(len(rows[0]), STATS))
    with pytest.raises(StoreError, match="the disk failed"):
        writer.close()
    assert not {thread.name for thread in set(threading.enumerate()) - before}
    assert live_writers(store) == []
    assert len(list(store.glob("shard-*/data.mdb"))) == 2
    assert sorted(Store.open(store)) == sorted(names)


def test_a_run_whose_store_became_another_ones_is_refused(tmp_path):
    """Between its making and its locking another run may have replaced the manifest of a store without shards."""
    from extractor import extraction

    mine, other = a_manifest(layer_ids=(2, 3, 5, 6)), a_manifest(layer_ids=(1, 3, 5, 6))
    path = prepare_store(tmp_path / "s", mine).path
    prepare_store(path, other)
    with RunLock(path, shared=False), pytest.raises(FingerprintError, match="layer_ids"):
        extraction._remaining(_Samples(), path, mine)


class _Samples:
    sample_ids = ("a",)


def test_looking_for_writers_does_not_turn_one_away(tmp_path):
    """Who looks holds the lock for a moment."""
    (tmp_path / ".writer-run-0").write_text("1")
    with (tmp_path / ".writer-run-0").open() as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)
        release = threading.Timer(0.01, lambda: fcntl.flock(probe, fcntl.LOCK_UN))
        release.start()
        with RunLock(tmp_path, shared=False):
            pass
        release.join()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, "no locks")

    monkeypatch.setattr(lock_module.fcntl, "flock", refuse)
    for take in (lambda: RunLock(tmp_path, shared=False), lambda: WriterLock(tmp_path, "r", 0)):
        with pytest.raises(StoreError, match=r"gives no locks .*write to a local disk"):
            take()
