"""The summary of a closed shard: the whole index in one block, so that opening is not a read for each group."""

from __future__ import annotations

import dataclasses
import errno

import numpy as np
import pytest
from store_cases import OPTIONS, a_manifest, a_store, content, many
from store_samples import stats_of

from extractor.errors import StoreError
from extractor.integrity import check_store
from extractor.record import encode_index
from extractor.repair import repair
from extractor.store import ShardWriter, Store, disk, prepare_store, shard
from extractor.store.shard import Shard
from extractor.store.shard_file import ShardFile
from extractor.store.tree import Tree

MANIFEST = a_manifest()
SAMPLES = many(40)
ONE_LANE = dataclasses.replace(OPTIONS, lanes=1)


def write(path, names=SAMPLES, close=True):
    """A group for each sample; the writer, closed or not."""
    writer = ShardWriter(path, run_id="r", writer=0, options=ONE_LANE)
    for name in names:
        token_ids, loss_mask, rows = content(name, SAMPLES[name], MANIFEST)
        writer.write_rows(name, 0, rows)
        writer.seal(name, token_ids=token_ids, loss_mask=loss_mask, stats=stats_of(rows))
        writer.flush()
    if close:
        writer.close()
    return writer


@pytest.fixture
def path(tmp_path):
    return prepare_store(tmp_path / "s", MANIFEST).path


def holds_all(path):
    store = Store.open(path, check=True)
    assert sorted(store) == sorted(SAMPLES)
    for name, length in SAMPLES.items():
        np.testing.assert_array_equal(store[name].hidden_states, content(name, length, MANIFEST)[2])
    return True


def block_of(whole, count):
    """Where the first index block of `count` entries begins: a value stands behind the header of a page."""
    head = b"INDX" + np.array([1, count], "<u4").tobytes()
    return next(at for at in range(16, len(whole), 4096) if whole.startswith(head, at))


def entries(path, table):
    file = next(path.glob("shard-*/data.mdb"))
    with file.open("rb") as handle:
        tree = Tree(handle.fileno(), file)
        return tree.table(table).entries if tree.has(table) else 0


@pytest.fixture
def read_tables(monkeypatch):
    """Names of the tables whose values are read."""
    names, values = [], Tree.values
    monkeypatch.setattr(Tree, "values", lambda tree, name: (names.append(name), values(tree, name))[1])
    return names


def test_a_closed_shard_is_listed_from_one_block(path, read_tables):
    write(path)
    assert (entries(path, b"index"), entries(path, b"summary")) == (len(SAMPLES), 1)
    read_tables.clear()
    assert holds_all(path)
    assert read_tables == [b"shard", b"summary"]


def test_it_says_what_the_blocks_say(path, monkeypatch):
    write(path)
    file = ShardFile(next(path.glob("shard-*")))
    summary = file.listing(MANIFEST.fingerprint())
    monkeypatch.setattr(Tree, "has", lambda tree, name: False)
    blocks = file.listing(MANIFEST.fingerprint())
    np.testing.assert_array_equal(summary.entries, blocks.entries)
    assert (summary.ids, summary.tile_pages) == (blocks.ids, blocks.tile_pages)


def test_a_shard_that_is_still_written_has_none(path, read_tables):
    writer = write(path, close=False)
    read_tables.clear()
    assert holds_all(path)
    assert read_tables == [b"shard", b"index"]
    writer.close()


def test_few_blocks_are_not_repeated(tmp_path):
    store = a_store(tmp_path / "s", {"a": 3, "b": 5})
    assert entries(store.path, b"index") > 0
    assert entries(store.path, b"summary") == 0


def test_every_damaged_bit_of_it_leaves_the_blocks(path):
    """Nor does damage to the blocks show while the summary is whole."""
    write(path)
    file = next(path.glob("shard-*/data.mdb"))
    whole = file.read_bytes()
    start = block_of(whole, len(SAMPLES))
    for at in range(start, start + 200, 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert sorted(Store.open(path)) == sorted(SAMPLES), at
    file.write_bytes(whole[:start].replace(b"INDX", b"XXXX") + whole[start:])
    assert holds_all(path)
    file.write_bytes(whole.replace(b"INDX", b"XXXX"))
    with pytest.warns(UserWarning, match="left out of the store"):
        assert len(Store.open(path)) == 0


@pytest.mark.parametrize("which", ["block", "summary"])
def test_a_check_names_the_list_that_is_damaged_and_a_repair_saves_all(path, which):
    write(path)
    file = next(path.glob("shard-*/data.mdb"))
    whole = file.read_bytes()
    count = 1 if which == "block" else len(SAMPLES)
    at = block_of(whole, count) + 30
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
    report = check_store(path)
    (finding,) = report.findings
    assert "one of the two lists of samples in shard-0000 is damaged, the other one holds" in finding.message
    assert report.checked_samples == len(SAMPLES)
    found = repair(path, report)
    assert (found.redo, found.shards, sorted(found.saved)) == ([], ["shard-0000"], sorted(SAMPLES))
    assert holds_all(path)
    assert check_store(path).ok


def test_a_check_notices_lists_that_differ(path, monkeypatch):
    def forgetful(entries, ids):
        return encode_index(entries[:39], ids[:-3]) if len(entries) == 40 else encode_index(entries, ids)

    monkeypatch.setattr(shard, "encode_index", forgetful)
    write(path)
    assert len(Store.open(path)) == 39
    (finding,) = check_store(path).findings
    assert finding.message == "shard-0000 has two lists of samples, which differ"


def test_a_full_disk_costs_the_summary_and_nothing_else(path, monkeypatch):
    writer = write(path, close=False)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "reserve", full)
    writer.close()
    assert entries(path, b"summary") == 0
    assert holds_all(path)


def test_a_disk_that_fails_at_it_is_reported(path, monkeypatch):
    writer = write(path, close=False)

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk, "reserve", broken)
    with pytest.raises(StoreError, match="Input/output error"):
        writer.close()
    monkeypatch.undo()
    assert holds_all(path)


def test_a_writer_that_was_broken_off_adds_none(path, monkeypatch):
    """What a failed disk still does to a shard is not worth knowing."""
    writer = write(path, close=False)
    monkeypatch.setattr(Shard, "commit", lambda self: (_ for _ in ()).throw(StoreError("gone")))
    with pytest.raises(StoreError, match="gone"):
        writer.close()
    monkeypatch.undo()
    assert entries(path, b"summary") == 0
    assert holds_all(path)
