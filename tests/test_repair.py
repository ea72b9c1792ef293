"""What `verify --repair` may touch, and what it must not lose."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil

import lmdb.verify
import pytest
from store_samples import a_manifest, assert_same_rows, index_block, rows_of, write_samples

from extractor import repair as repairing
from extractor.errors import CorruptError, DiskFullError, StoreError
from extractor.integrity import check_store
from extractor.repair import repair
from extractor.store import ShardWriter, Store, prepare_store
from extractor.store.lock import RunLock
from extractor.store.parts import Part, add_part, mark_as_part
from extractor.store.rejects import read_rejects

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
    overwrite(file, 0, bytes(4096))  # the first root
    report = check_store(path)
    assert [f.shard for f in report.findings] == ["shard-10000"]
    done = repair(path, report)
    assert (done.shards, done.saved, done.redo) == (["shard-10000"], ["s3", "s4", "s5"], [])
    assert_whole(path)


def test_damage_to_a_part_names_the_repair_of_its_store(spread):
    """A repair of the part alone would write its rejects where the store's readers do not look."""
    path, file = spread
    offset = int(Store.open(path)["s4"].seal.tiles[0]["offset"])
    overwrite(file, offset, b"damage")
    with pytest.raises(CorruptError, match=rf"'s4'.*checksum; run `extractor verify {path} --repair`$"):
        _ = Store.open(path, check=True)["s4"].hidden_states


def test_reasons_are_stored_without_the_advice_of_their_day(path):
    offset = int(Store.open(path)["s4"].seal.tiles[0]["offset"])
    overwrite(path / "shard-0001" / "data.mdb", offset, b"damage")
    shutil.rmtree(path / "shard-0000")
    report = check_store(path)
    repair(path, report)
    reasons = [reject.reason for reject in read_rejects(path)]
    assert [reason.rsplit(" ", 3)[1:] for reason in reasons[:1]] == [["match", "its", "checksum"]]
    assert reasons[1:] == ["shard shard-0000 has lost its data.mdb"]
    assert [finding.message for finding in report.findings] == reasons[::-1]


def test_a_part_that_is_being_written_is_not_repaired(spread):
    path, file = spread
    overwrite(file, 0, bytes(4096))
    with ShardWriter(file.parent.parent, run_id="busy", writer=0), pytest.raises(StoreError, match="a repair needs it"):
        repair(path, check_store(path))
    assert not (path / "rejects.jsonl").exists()


@pytest.fixture
def foreign(tmp_path):
    """The folder of a shard of another model's store."""
    other = prepare_store(tmp_path / "other", a_manifest(options={"model_weights_hash": "else"})).path
    write_samples(other, {"foreign": rows_of(9, 7, MANIFEST)})
    return other / "shard-0000"


@pytest.mark.parametrize("root_bytes", [0, 4096], ids=["whole", "damaged"])
def test_a_shard_of_another_store_is_not_adopted(path, foreign, root_bytes):
    shard = shutil.copytree(foreign, path / "shard-0002")
    overwrite(shard / "data.mdb", 0, bytes(root_bytes))
    report = check_store(path)
    assert [f.shard for f in report.findings] == ["shard-0002"]
    with pytest.raises(StoreError, match=r"shard-0002.* belongs to a store of fingerprint .*move the shard's folder"):
        repair(path, report)
    assert not (path / "rejects.jsonl").exists()
    shutil.rmtree(shard)
    assert_whole(path)


def test_a_shard_that_can_not_be_opened_is_not_given_up(path, monkeypatch):
    def refuse(file, _store):
        raise StoreError(f"{file} can't be opened: permission denied; make it readable")

    monkeypatch.setattr("extractor.store.shard_file.open_to_read", refuse)
    report = check_store(path)
    with pytest.raises(StoreError, match="shard-0000 is not damaged.*make it readable"):
        repair(path, report)
    monkeypatch.undo()
    assert_whole(path)


def test_a_description_without_its_fields_is_damage(path):
    file = path / "shard-0001" / "data.mdb"
    overwrite(file, file.read_bytes().index(b'"format_version"'), b'"format_versiom"')
    report = check_store(path)
    assert ["no readable description" in f.message for f in report.findings] == [True]
    assert repair(path, report).saved == ["s3", "s4", "s5"]
    assert_whole(path)


@pytest.mark.parametrize("value", ["tile", "seals"])
@pytest.mark.parametrize("bit", [0, 1, 3, 5, 20, 30])
@pytest.mark.parametrize("is_listed", [True, False], ids=["listed", "unlisted"])
def test_a_damaged_page_count_hides_no_neighbour(path, bit, value, is_listed):
    """The count of a value's pages is in no checksum. Only of its own sample a smaller one can be the loss."""
    store = Store.open(path)
    shard, seal_offset = store.place(list(store).index("s3"))
    file = path / shard / "data.mdb"
    at = (seal_offset if value == "seals" else int(store["s3"].seal.tiles[0]["offset"])) - 4
    count = int.from_bytes(file.read_bytes()[at : at + 4], "little")
    overwrite(file, at, (count ^ 1 << bit).to_bytes(4, "little"))
    if not is_listed:
        overwrite(file, 0, bytes(4096))
    report = check_store(path)
    assert "shard-0001" in {f.shard for f in report.findings}
    repair(path, report)
    lost = {"s3"} if value == "tile" and count ^ 1 << bit < count else set()
    assert_whole(path, set(SAMPLES) - lost)


def test_a_repair_without_room_for_its_copies_changes_nothing(path, monkeypatch):
    overwrite(path / "shard-0001" / "data.mdb", 0, bytes(4096))
    monkeypatch.setattr("extractor.disk.free_bytes", lambda _: 30_000)
    with pytest.raises(DiskFullError, match=r"needs [\d,]+ bytes .* 30,000 bytes free .*then repair again"):
        repair(path, check_store(path))
    assert sorted(f.name for f in path.glob("shard-*")) == ["shard-0000", "shard-0001"]
    assert not (path / "rejects.jsonl").exists()
    monkeypatch.undo()
    assert repair(path, check_store(path)).saved == ["s3", "s4", "s5"]
    assert_whole(path)


@pytest.fixture
def bad_sector(monkeypatch):
    """Make every read of a file that touches a byte fail, and LMDB's walk through the file."""
    pread, preadv, bad = os.pread, os.preadv, {}

    def check(fd, size, offset):
        at = bad.get(os.fstat(fd).st_ino)
        if at is not None and offset <= at < offset + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def failing_pread(fd, size, offset):
        check(fd, size, offset)
        return pread(fd, size, offset)

    def failing_preadv(fd, buffers, offset):
        check(fd, sum(memoryview(b).nbytes for b in buffers), offset)
        return preadv(fd, buffers, offset)

    def walk(name, **options):
        if os.stat(name).st_ino in bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return verify(name, **options)

    verify = lmdb.verify.verify
    monkeypatch.setattr(os, "pread", failing_pread)
    monkeypatch.setattr(os, "preadv", failing_preadv)
    monkeypatch.setattr(lmdb.verify, "verify", walk)
    return lambda file, at: bad.__setitem__(file.stat().st_ino, at)


@pytest.mark.parametrize("where", ["root", "index", "tile", "seals"])
def test_a_bad_sector_costs_no_more_than_what_is_on_it(path, bad_sector, where):
    file = path / "shard-0001" / "data.mdb"
    store = Store.open(path)
    places = {
        "root": 100,
        "index": index_block(file),
        "tile": int(store["s3"].seal.tiles[0]["offset"]),
        "seals": store.place(list(store).index("s3"))[1],
    }
    bad_sector(file, places[where])
    assert {"s0", "s1", "s2"} <= set(Store.quietly(path))
    report = check_store(path)
    assert {f.shard for f in report.findings} == {"shard-0001"}
    assert any("Input/output error" in f.message for f in report.findings)
    repair(path, report)
    assert_whole(path, set(SAMPLES) - ({"s3"} if where in ("tile", "seals") else set()))


def test_no_run_starts_during_a_repair(path, monkeypatch):
    def look(*args):
        with pytest.raises(StoreError, match=f"by process {os.getpid()}"):
            RunLock(path, shared=False)
        looks.append(args)
        add_rejects(*args)

    looks = []
    add_rejects = repairing.add_rejects
    monkeypatch.setattr(repairing, "add_rejects", look)
    overwrite(path / "shard-0001" / "data.mdb", 0, bytes(4096))
    repair(path, check_store(path))
    assert len(looks) == 1
    assert_whole(path)


@pytest.mark.parametrize("whole", [True, False], ids=["shard", "sample"])
def test_an_older_seal_that_is_damaged_too_does_not_come_back(path, whole):
    """A check looks at the newest seal of a sample only; what it hides would have counted as stored."""
    old = Store.open(path)["s1"].seal
    write_samples(path, {"s1": SAMPLES["s1"], "s2": SAMPLES["s2"]}, run_id="again")
    new = Store.open(path)["s1"].seal
    overwrite(path / "shard-0000" / "data.mdb", int(old.tiles[0]["offset"]), b"\0\1\2\3")
    overwrite(path / "shard-0002" / "data.mdb", int(new.tiles[0]["offset"]), b"\0\1\2\3")
    report = check_store(path)
    if whole:
        report.findings = [dataclasses.replace(report.findings[0], sample_id=None, seal_offset=None)]
    assert repair(path, report).redo == ["s1"]
    assert_whole(path, set(SAMPLES) - {"s1"})
