"""Collecting parts: the store is then whole by itself; a copy that differs never gets in."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from ray_cases import a_cluster
from store_cases import a_manifest, a_store, add, content, many
from test_parts import a_part

from extractor.cli import main
from extractor.errors import ClusterError, CorruptError
from extractor.integrity import check_store
from extractor.repair import repair
from extractor.replicas import gathering, part_sources
from extractor.replicas.gathering import gather, require_all
from extractor.store import ShardWriter, Store, prepare_store
from extractor.store.layout import listed
from extractor.store.parts import Part, parts
from extractor.store.shard_file import ShardFile
from extractor.store.shard_names import shard_number

FIRST, SECOND = {"a": 40, "b": 7}, {"c": 130, "b": 9}


@pytest.fixture
def spread(tmp_path):
    """A store with `own` itself and two parts; `b` is in both."""
    store = a_store(tmp_path / "store", {"own": 3}).path
    a_part(store, tmp_path / "p1", 10_000, FIRST, host=os.uname().nodename)
    a_part(store, tmp_path / "p2", 20_000, SECOND, host=os.uname().nodename)
    return store


def require_whole(store):
    """Everything is there with the parts' folders gone."""
    for part in ("p1", "p2"):
        shutil.rmtree(store.parent / part, ignore_errors=True)
    found = Store.open(store, check=True)
    want = {"own": 3, **FIRST, **SECOND}
    assert {name: len(found[name]) for name in found} == want
    for name, tokens in want.items():
        np.testing.assert_array_equal(found[name].hidden_states, content(name, tokens, a_manifest())[2])
    assert parts(store) == []


def test_all_parts_are_copied(spread):
    done = gather(spread)
    assert done.problems == {}
    assert {name[:7] for name in done.shards} == {"shard-1", "shard-2"}
    assert done.copied_bytes == sum(f.stat().st_size for f in spread.glob("shard-[12]????/data.mdb"))
    assert (spread.parent / "p1").exists()
    require_whole(spread)


def test_move_deletes_the_sources(spread):
    gather(spread, move=True)
    assert not (spread.parent / "p1").exists()
    assert not (spread.parent / "p2").exists()
    require_whole(spread)


def test_a_second_call_does_nothing(spread):
    gather(spread)
    again = gather(spread)
    assert (again.shards, again.copied_bytes, again.parts) == ([], 0, [])


class Broken(part_sources.LocalPart):
    """Fails after its first bytes."""

    def chunks(self, shard, start, size):
        yield next(super().chunks(shard, start, min(size, start + 5000)))
        raise ClusterError("cable pulled")


def test_it_goes_on_in_the_middle_of_a_file(spread, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("extractor.replicas.gathering.source_of", Broken)
        with pytest.raises(ClusterError, match="cable"):
            gather(spread)
    assert not list(spread.glob("shard-1*"))
    done = gather(spread)
    assert done.resumed_bytes == 5000
    require_whole(spread)


@pytest.mark.parametrize("size", [100, 10_000_000])
def test_a_copy_that_differs_is_refused_and_redone(spread, size):
    first = min(folder.name for folder in (spread.parent / "p1").glob("shard-*"))
    (spread / f".gather-{first}").mkdir()
    (spread / f".gather-{first}" / "data.mdb").write_bytes(b"x" * size)
    if size == 100:
        with pytest.raises(CorruptError, match=rf"copy of {first} has checksum"):
            gather(spread)
        assert not (spread / first).exists()
    gather(spread)
    require_whole(spread)


def test_a_part_that_is_being_written_waits(spread):
    with ShardWriter(spread.parent / "p1", run_id="live", writer=0):
        done = gather(spread)
    assert len(done.parts) == 1
    with pytest.raises(ClusterError, match="p1: .* is being written"):
        require_all(done)
    assert [part.path.name for part in parts(spread)] == ["p1"]
    gather(spread)
    require_whole(spread)


def test_a_folder_of_another_store_is_refused(spread):
    shutil.rmtree(spread.parent / "p1")
    prepare_store(spread.parent / "p1", a_manifest(samples_hash="other"))
    done = gather(spread)
    assert "belongs to another store" in next(iter(done.problems.values()))


def test_the_command(spread, capsys):
    assert main(["gather", str(spread), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["parts"]) == 2
    require_whole(spread)


def test_a_store_without_parts_is_told_in_a_sentence(tmp_path, capsys):
    path = a_store(tmp_path / "store", {}).path
    assert main(["gather", str(path)]) == 0
    assert capsys.readouterr().out == (
        f"{path} has no parts: all its shards lie in the store itself, so there is nothing to gather\n"
    )
    assert main(["gather", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shards"] == []


def test_parts_on_other_hosts_come_through_ray(tmp_path, monkeypatch):
    """The driver is made blind to the folders; a node of the cluster, which is not, reads them."""
    pytest.importorskip("ray")
    lengths = many(40, longest=400)
    store = a_store(tmp_path / "store", {}).path
    a_part(store, tmp_path / "p1", 10_000, lengths, host=os.uname().nodename)
    a_part(store, tmp_path / "p2", 20_000, {"x": 5}, host="gone-host")
    monkeypatch.setattr(Part, "visible", property(lambda part: False))
    monkeypatch.setattr(part_sources, "_CHUNK_BYTES", 1 << 16)
    with a_cluster(1) as cluster:
        assert main(["gather", str(store), "--ray-address", cluster.address, "--json"]) == 1
    monkeypatch.undo()
    assert [part.host for part in parts(store)] == ["gone-host"]
    shutil.rmtree(tmp_path / "p1")
    add(store, {"y": 2}, a_manifest(), run_id="later")
    found = Store.open(store, check=True)
    assert set(found) == {*lengths, "x", "y"}
    for name, tokens in lengths.items():
        np.testing.assert_array_equal(found[name].hidden_states, content(name, tokens, a_manifest())[2])


class Killed(BaseException):
    """Passes every `except` as SIGKILL would."""


@pytest.mark.parametrize("step", ["enlist", "drop_part", "sync_folder", "_drop"])
@pytest.mark.parametrize("move", [False, True], ids=["copy", "move"])
@pytest.mark.parametrize("calls", [0, 1])
def test_killed_at_any_step_it_goes_on(spread, monkeypatch, step, move, calls):
    """No copy is left out of the list of shards, and with `move` no part's bytes stay on its host."""
    real, left = getattr(gathering, step), [calls]

    def die(*args):
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(gathering, step, die)
        with pytest.raises(Killed):
            gather(spread, move=move)
    gather(spread, move=move)
    assert listed(spread) == {shard_number(folder.name) for folder in spread.glob("shard-*")}
    assert not move or not list(spread.parent.glob("p?/shard-*"))
    require_whole(spread)


def give_up(store, shard):
    """Of the seals of these small stores no check is passed, so nothing is saved."""
    report = check_store(store)
    report.findings = [finding for finding in report.findings if finding.shard == shard]
    assert repair(store, report).shards == [shard]


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_what_was_given_up_is_not_copied(spread, damage):
    """A bad sector in it would end every call."""
    name = min(folder.name for folder in (spread.parent / "p1").glob("shard-*"))
    file = spread.parent / "p1" / name / "data.mdb"
    file.unlink() if damage == "lost" else file.write_bytes(bytes(4096) + file.read_bytes()[4096:])
    if damage == "lost":
        problems = gather(spread).problems
        assert "data.mdb is gone; restore it" in next(iter(problems.values()))
        assert [part.path.name for part in parts(spread)] == ["p1"]
    give_up(spread, name)
    done = gather(spread, move=True)
    assert done.problems == {}
    assert name not in done.shards
    assert not (spread.parent / "p1").exists()
    assert {"own", *SECOND} <= set(Store.open(spread, check=True))
    assert parts(spread) == []


def test_a_reader_that_opens_while_a_part_is_moved_misses_nothing(spread, monkeypatch):
    """It looked for the shard in the part, and opened it when it was already in the store."""
    listing, moved = ShardFile.listing, []

    def move_first(self, fingerprint):
        if not moved:
            moved.append(1)
            gather(spread, move=True)
        return listing(self, fingerprint)

    monkeypatch.setattr(ShardFile, "listing", move_first)
    store = Store.quietly(spread)
    assert store.problems == {}
    assert set(store) == {"own", *FIRST, *SECOND}
