"""A store whose shards lie in several folders reads as one; what can't be seen is named."""

from __future__ import annotations

import shutil
import warnings

import numpy as np
import pytest
from store_cases import a_manifest, a_store, add, content

from extractor.cli import main
from extractor.compaction import compact
from extractor.errors import StoreError
from extractor.loader import HiddenStateDataset
from extractor.record import STATS
from extractor.store import ShardWriter, Store, prepare_store
from extractor.store.layout import shards
from extractor.store.parts import Part, add_part, drop_part, elsewhere, mark_as_part, parts, require_all_here


def a_part(store, folder, first_shard, lengths, host="h"):
    prepare_store(folder, a_manifest())
    mark_as_part(folder, first_shard)
    add_part(store, Part(host=host, path=folder, run_id="r", first_shard=first_shard))
    add(folder, lengths, a_manifest())


@pytest.fixture
def spread(tmp_path):
    """Samples in the store itself and in two parts; `b` is sealed in both parts, with another content in the newer."""
    store = a_store(tmp_path / "store", {"a": 5}).path
    a_part(store, tmp_path / "p1", 10_000, {"b": 7, "c": 3})
    a_part(store, tmp_path / "p2", 20_000, {"b": 9, "d": 130})
    return store


def test_all_parts_read_as_one(spread):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = Store.open(spread, check=True)
    assert {name: len(store[name]) for name in store} == {"a": 5, "c": 3, "b": 9, "d": 130}
    for name, tokens in (("a", 5), ("c", 3), ("b", 9), ("d", 130)):
        np.testing.assert_array_equal(store[name].hidden_states, content(name, tokens, a_manifest())[2])


def test_shard_names_are_unique(spread):
    names = [folder.name for folder in shards(spread)]
    assert len(set(names)) == len(names)
    assert [name for name in names if name >= "shard-1"] == sorted(n for n in names if n >= "shard-1")
    assert {folder.parent.name for folder in shards(spread)} == {"store", "p1", "p2"}


def test_the_loader_reads_it_without_change(spread):
    batches = list(HiddenStateDataset(spread, token_budget=200, rank=0, world_size=1))
    got = {name for batch in batches for name in batch["sample_ids"]}
    assert got == {"a", "b", "c", "d"}


def test_a_new_shard_sorts_after_every_part(spread):
    shutil.rmtree(spread.parent / "p2")  # as if it lay on another host
    add(spread, {"b": 4}, a_manifest(), run_id="later")
    assert max(folder.name for folder in shards(spread)) >= "shard-30000"
    with pytest.warns(UserWarning, match="p2"):
        assert len(Store.open(spread)["b"]) == 4


def test_a_part_on_another_host_is_named(spread):
    shutil.rmtree(spread.parent / "p1")
    (away,) = elsewhere(spread)
    assert str(away) == f"h:{spread.parent / 'p1'}"
    with pytest.warns(UserWarning, match=r"left out of the store: h:.*p1"):
        assert sorted(Store.open(spread)) == ["a", "b", "d"]
    with pytest.raises(StoreError, match=r"1 of its parts lie on other hosts.*gather"):
        require_all_here(spread, "this")


def test_compaction_leaves_parts_alone(spread):
    with pytest.raises(StoreError, match="gather"):
        compact(spread)


def test_the_list_survives_a_cut_line_and_names_a_bad_one(spread):
    listed = spread / "parts.jsonl"
    text = listed.read_text()
    listed.write_text(text + '{"host": "x"')
    assert len(parts(spread)) == 2
    listed.write_text('{"host": "x"}\n')
    with pytest.raises(StoreError, match="names no part"):
        parts(spread)
    listed.write_text(text)
    for part in parts(spread):
        drop_part(spread, part)
    assert not listed.exists()
    assert parts(spread) == []


def test_a_shard_outgrows_its_estimate(tmp_path):
    """Groups are larger than the map that a wrong `expected_bytes` asks for."""
    manifest = a_manifest(hidden_size=4096)
    prepare_store(tmp_path / "s", manifest)
    rows = np.zeros((64, *manifest.row_shape), np.float16)
    with ShardWriter(tmp_path / "s", run_id="r", writer=0, expected_bytes=1) as writer:
        for n in range(8):
            writer.write_rows(f"s{n}", 0, rows)
            zeros = np.zeros(64, np.int32)
            writer.seal(f"s{n}", token_ids=zeros, loss_mask=zeros.astype(np.uint8), stats=np.zeros(4, STATS))
    assert len(Store.open(tmp_path / "s", check=True)) == 8


def test_removal_knows_the_list_and_names_the_parts(spread, capsys):
    assert main(["remove", str(spread), "--yes"]) == 0
    assert f"elsewhere  h:{spread.parent / 'p1'} stays" in capsys.readouterr().err
    assert not spread.exists()
    assert main(["remove", str(spread.parent / "p1"), "--yes"]) == 0
    assert not (spread.parent / "p1").exists()
