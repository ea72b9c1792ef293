"""A store whose manifest is lost, damaged or changed: told as that, and written anew from a shard."""

from __future__ import annotations

import json
import shutil

import pytest
from store_samples import a_manifest, assert_same_rows, rows_of, write_samples

from extractor.cli import main
from extractor.errors import CorruptError, StoreError
from extractor.store import Store, prepare_store
from extractor.store.lost_manifest import restore_manifest

MANIFEST = a_manifest()
ROWS = {f"s{n}": rows_of(n, 20, MANIFEST) for n in range(3)}


@pytest.fixture
def path(tmp_path):
    path = prepare_store(tmp_path / "a store", MANIFEST).path
    write_samples(path, ROWS)
    return path


DAMAGES = {
    "gone": lambda file: file.unlink(),
    "no JSON": lambda file: file.write_bytes(file.read_bytes()[:100]),
    "no UTF-8": lambda file: file.write_bytes(b"\xff" + file.read_bytes()[1:]),
    "another type": lambda file: file.write_text("[]"),
    "a field less": lambda file: file.write_text(json.dumps({"options": {}})),
    "a wrong value": lambda file: file.write_text(json.dumps({**json.loads(file.read_text()), "dtype": "float12"})),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_it_is_written_anew(path, damage, capsys):
    file = path / "manifest.json"
    whole = file.read_bytes()
    DAMAGES[damage](file)
    with pytest.raises(CorruptError, match=r"`extractor verify '.*a store' --repair` writes it anew"):
        Store.open(path)
    with pytest.raises(CorruptError, match="writes it anew"):
        prepare_store(path, MANIFEST)
    for command in ("inspect", "verify"):
        assert main([command, str(path)]) == 1
        assert "--repair` writes it anew" in capsys.readouterr().err
    assert main(["verify", str(path), "--repair"]) == 0
    assert "written anew from the copy in shard-0000" in capsys.readouterr().err
    assert file.read_bytes() == whole
    store = Store.open(path, check=True)
    for name, rows in ROWS.items():
        assert_same_rows(store[name].hidden_states, rows)


def test_a_sound_one_is_left_alone(path):
    before = (path / "manifest.json").stat()
    assert restore_manifest(path) is None
    assert (path / "manifest.json").stat() == before


def test_one_that_was_changed_is_told_apart_from_a_foreign_shard(path):
    file = path / "manifest.json"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"samples_hash": "s0"', b'"samples_hash": "elsewhere"'))
    assert file.read_bytes() != whole
    with pytest.warns(UserWarning, match="if all shards say so, it is manifest.json that was changed"):
        assert len(Store.open(path)) == 0
    file.unlink()
    assert restore_manifest(path) == "shard-0000"
    assert file.read_bytes() == whole


def test_a_damaged_shard_does_not_stand_in_the_way(path):
    write_samples(path, {"more": rows_of(9, 20, MANIFEST)}, run_id="more")
    data = path / "shard-0000" / "data.mdb"
    data.write_bytes(bytes(8192) + data.read_bytes()[8192:])
    (path / "manifest.json").unlink()
    assert restore_manifest(path) == "shard-0001"


def test_shards_of_two_stores_decide_nothing(path, tmp_path):
    other = prepare_store(tmp_path / "other", a_manifest(samples_hash="s1")).path
    write_samples(other, {"x": rows_of(1, 5, MANIFEST)})
    shutil.copytree(other / "shard-0000", path / "shard-0007")
    (path / "manifest.json").unlink()
    with pytest.raises(StoreError, match=r"different stores \(shard-0000, shard-0007\); move the foreign ones away"):
        restore_manifest(path)
    assert not (path / "manifest.json").exists()


def test_without_a_copy_the_way_out_is_told(tmp_path, monkeypatch):
    from pathlib import Path

    golden = Path(__file__).parent / "golden" / "store_v1_none"  # of before shards had one
    path = tmp_path / "s"
    shutil.copytree(golden, path)
    names = sorted(Store.open(path))
    whole = (path / "manifest.json").read_bytes()
    (path / "manifest.json").unlink()
    with pytest.raises(StoreError, match="start the same run in another folder, end it once its manifest is there"):
        restore_manifest(path)
    (path / "manifest.json").write_bytes(whole)
    assert sorted(Store.open(path)) == names


def test_another_folder_is_none_of_its_business(tmp_path, capsys):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "file").write_text("mine")
    assert main(["verify", str(tmp_path / "x"), "--repair"]) == 1
    assert "so it is not a store" in capsys.readouterr().err
    assert [entry.name for entry in (tmp_path / "x").iterdir()] == ["file"]
