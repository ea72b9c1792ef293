"""What `compact` needs, and what a crash of it leaves."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from store_cases import damage
from store_samples import a_manifest, assert_same_rows, rows_of, seal, write_samples

from extractor import compaction
from extractor.cli import main
from extractor.compaction import compact
from extractor.errors import DiskFullError, StoreError
from extractor.integrity import check_store
from extractor.repair import repair
from extractor.store import ShardWriter, Store, WriterOptions, prepare_store
from extractor.store.lock import RunLock
from extractor.store.rejects import Reject, add_rejects
from extractor.store_files import store_files, store_folders

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
    assert (done.rewritten, done.removed, done.samples) == ([f"shard-000{n}" for n in range(4)], ["shard-0004"], 4)
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


class Killed(BaseException):
    """Passes every `except` as SIGKILL would."""


@pytest.fixture(params=["given up", "wasteful"])
def doomed(request, tmp_path):
    """(path, samples, those that are stored) of a store whose last shard compact will remove: a repair gave it up with
    the sample in it, or half of it is dead."""
    path = prepare_store(tmp_path / "s", MANIFEST).path
    samples = {f"s{n}": rows_of(n, 40, MANIFEST) for n in range(4)}
    write_samples(path, {name: samples[name] for name in ("s0", "s1")})
    write_samples(path, {name: samples[name] for name in ("s2", "s3")}, run_id="last")
    if request.param == "given up":
        with (path / "shard-0001" / "data.mdb").open("r+b") as handle:
            handle.truncate(100)
    else:
        damage(Store.open(path, check=True), "s3")
    repair(path, check_store(path))
    return path, samples, set(samples) - ({"s2", "s3"} if request.param == "given up" else {"s3"})


def kill_in(monkeypatch, what):
    """Die before the call; in the middle of it where it deletes. Others than compact may rename and delete."""
    module, _, name = what.rpartition(".")
    call = getattr(Path if module else compaction, name) if name != "rmtree" else shutil.rmtree

    def die(*args, **options):
        if module and ".gone-" not in str(args[-1]):
            return call(*args, **options)
        if name == "rmtree":
            (args[0] / "data.mdb").unlink()
        raise Killed

    monkeypatch.setattr(what if module else f"extractor.compaction.{what}", die)


@pytest.mark.parametrize("what", ["unlist", "pathlib.Path.rename", "sync_folder", "write_rejects", "shutil.rmtree"])
def test_a_compact_killed_at_any_step_loses_nothing(doomed, monkeypatch, what):
    path, samples, stored = doomed
    kill_in(monkeypatch, what)
    with pytest.raises(Killed):
        compact(path)
    monkeypatch.undo()
    assert_holds(path, {name: samples[name] for name in stored})
    redone = {name: rows for name, rows in samples.items() if name not in stored}
    write_samples(path, redone, run_id="redo")
    for _ in range(2):
        assert_holds(path, samples)
        compact(path)
    assert_holds(path, samples)
    assert sum(shard.dead_bytes for shard in Store.open(path).shards) == 0
    assert [name for name in names(path) if not name.startswith("shard-")] == []
    assert not (path / "rejects.jsonl").exists()


def test_a_reject_of_a_seal_does_not_hold_of_a_later_shard(tmp_path):
    path = prepare_store(tmp_path / "s", MANIFEST).path
    samples = {f"s{n}": rows_of(n, 40, MANIFEST) for n in range(2)}
    write_samples(path, {"s0": samples["s0"]})
    _, offset = Store.open(path).place(0)
    add_rejects(path, [Reject(shard="shard-0001", seal_offset=offset, reason="of a shard that is gone")])
    write_samples(path, {"s1": samples["s1"]})
    assert_holds(path, samples)


def test_what_a_killed_compact_left_is_the_stores_own(doomed, monkeypatch):
    path, _, _ = doomed
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    compact(path)
    own, foreign = store_files(path)
    assert Path(".gone-shard-0001/data.mdb") in [file.path for file in own]
    assert ".gone-shard-0001" in store_folders(path)
    assert foreign == []


def test_nothing_to_do_is_one_sentence(tmp_path, capsys):
    path = prepare_store(tmp_path / "s", MANIFEST).path
    write_samples(path, {"s0": rows_of(0, 40, MANIFEST)})
    assert main(["compact", str(path)]) == 0
    said = f"nothing to do: of each shard in {path} less than 0.05 is dead (--min-dead)\n"
    assert capsys.readouterr().out == said
    assert main(["compact", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rewritten"] == []


def test_what_was_done_is_a_table(wasteful, capsys):
    assert main(["compact", str(wasteful[0])]) == 0
    assert "shard-0004" in capsys.readouterr().out


def test_shards_without_samples_go(tmp_path):
    """Each failed run leaves some, and each costs a reader a file to open."""
    path = prepare_store(tmp_path / "s", MANIFEST).path
    samples = {"s0": rows_of(0, 40, MANIFEST)}
    write_samples(path, samples)
    for run in ("stopped", "again"):
        with ShardWriter(path, run_id=run, writer=0, options=OPTIONS) as writer:
            writer.write_rows("s1", 0, samples["s0"])
    assert names(path) == ["shard-0000", "shard-0001", "shard-0002"]
    assert compact(path).removed == ["shard-0001", "shard-0002"]
    assert names(path) == ["shard-0000"]
    assert_holds(path, samples)


def test_a_shard_behind_a_link_is_copied_and_only_the_link_removed(wasteful, tmp_path):
    path, samples = wasteful
    shutil.move(path / "shard-0000", tmp_path / "far")
    (path / "shard-0000").symlink_to(tmp_path / "far")
    compact(path)
    assert [name for name in names(path) if not name.startswith("shard-")] == []
    assert (tmp_path / "far" / "data.mdb").exists()
    assert_holds(path, samples)
