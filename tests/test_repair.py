"""What `verify --repair` may touch, and what it must not lose."""

from __future__ import annotations

import pytest
from store_samples import a_manifest, assert_same_rows, rows_of, write_samples

from extractor.errors import StoreError
from extractor.integrity import check_store
from extractor.repair import repair
from extractor.store import ShardWriter, Store, prepare_store
from extractor.store.parts import Part, add_part, mark_as_part

MANIFEST = a_manifest()
SAMPLES = {f"s{i}": rows_of(i, 20 + 31 * i, MANIFEST) for i in range(6)}


def write_half(path, first):
    write_samples(path, {name: SAMPLES[name] for name in list(SAMPLES)[first : first + 3]}, run_id=f"r{first}")


@pytest.fixture
def path(tmp_path):
    """A store of six samples in two shards."""
    path = prepare_store(tmp_path / "s", MANIFEST).path
    write_half(path, 0)
    write_half(path, 3)
    return path


@pytest.fixture
def spread(tmp_path):
    """The same samples, the second half of them in a part."""
    path = prepare_store(tmp_path / "s", MANIFEST).path
    part = prepare_store(tmp_path / "part", MANIFEST).path
    mark_as_part(part, 10_000)
    add_part(path, Part(host="h", path=part, run_id="r", first_shard=10_000))
    write_half(path, 0)
    write_half(part, 3)
    return path, part / "shard-10000" / "data.mdb"


def assert_whole(path, names=tuple(SAMPLES)):
    """The store holds exactly these samples with the values that were written, and is sound."""
    store = Store.open(path, check=True)
    assert set(store) == set(names)
    for name in names:
        assert_same_rows(store[name].hidden_states, SAMPLES[name])
    assert check_store(path).ok


def overwrite(file, offset, data):
    with file.open("r+b") as handle:
        handle.seek(offset)
        handle.write(data)


def test_a_part_is_checked_and_repaired_where_it_lies(spread):
    path, file = spread
    assert_whole(path)
    overwrite(file, 0, bytes(4096))  # the first root: what is sealed can still be found
    report = check_store(path)
    assert [f.shard for f in report.findings] == ["shard-10000"]
    done = repair(path, report)
    assert (done.shards, done.saved, done.redo) == (["shard-10000"], ["s3", "s4", "s5"], [])
    assert_whole(path)


def test_a_part_that_is_being_written_is_not_repaired(spread):
    path, file = spread
    overwrite(file, 0, bytes(4096))
    with ShardWriter(file.parent.parent, run_id="busy", writer=0), pytest.raises(StoreError, match="a repair needs it"):
        repair(path, check_store(path))
    assert not (path / "rejects.jsonl").exists()
