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
from extractor.replicas import part_sources
from extractor.replicas.gathering import gather, require_all
from extractor.store import ShardWriter, Store, prepare_store
from extractor.store.parts import Part, parts

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
