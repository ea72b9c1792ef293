"""Imports of an export's folder: what its ledger lists must be what was written, and all of it there."""

from __future__ import annotations

import json
import os

import pytest
from store_cases import a_store, content, norm_only_model

from extractor.cli import main
from extractor.errors import DiskFullError, InputError
from extractor.exports import ExportOptions, export_store
from extractor.imports import ImportOptions, import_folder, job
from extractor.store import Store
from extractor.store_files import store_files

LENGTHS = {"a": 5, "b": 21, "c": 9}
FORMATS = ("speculators", "specforge", "modelopt", "safetensors")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return a_store(tmp_path_factory.mktemp("ledger") / "store", LENGTHS)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return norm_only_model(tmp_path_factory.mktemp("model"))


def exported(files, store, model, form):
    """Files of the samples in the store's order."""
    if form == "speculators":
        pytest.importorskip("datasets")
    export_store(store.path, form, files, ExportOptions(dtype="float16", model=model))
    return [files / json.loads(line)["file"] for line in (files / "samples.jsonl").read_text().splitlines()]


def flip_a_state(file, rows):
    """One bit of a value, with the size and the time of before. The last aux state is written as it was stored."""
    before = file.stat()
    data = bytearray(file.read_bytes())
    place = data.index(rows[0, 2].tobytes())
    data[place + 1] ^= 0x10
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def rejects(store):
    return {e["file"]: e["reason"] for e in map(json.loads, (store / "import-rejects.jsonl").read_text().splitlines())}


@pytest.mark.parametrize("form", FORMATS)
def test_a_part_of_an_export_is_no_whole_one(tmp_path, store, model, form):
    """A copy that was cut off: what lay there was all that there seemed to be. Completed, the same import goes on."""
    files = exported(tmp_path / "files", store, model, form)
    files[1].rename(tmp_path / "elsewhere")
    arguments = ["import", str(tmp_path / "files"), "--from", form, "--model", str(model)]
    assert main([*arguments, "--out", str(tmp_path / "back")]) == 3
    ((_, reason),) = rejects(tmp_path / "back").items()
    assert "not there" in reason or "can't be" in reason
    assert set(Store.open(tmp_path / "back")) == set(store) - {list(store)[1]}
    (tmp_path / "elsewhere").rename(files[1])
    assert main([*arguments, "--out", str(tmp_path / "back")]) == 0
    assert set(Store.open(tmp_path / "back")) == set(store)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("number", [0, 1])
def test_flipped_bits_are_not_given_new_checksums(tmp_path, store, model, form, number, capsys):
    """Also those of the first file, which decides what the store is."""
    files = exported(tmp_path / "files", store, model, form)
    name = list(store)[number]
    flip_a_state(files[number], content(name, LENGTHS[name], store.manifest)[2])
    arguments = ["import", str(tmp_path / "files"), "--from", form, "--model", str(model)]
    assert main([*arguments, "--out", str(tmp_path / "back")]) == 3
    assert "1 file was rejected" in capsys.readouterr().err
    assert set(Store.open(tmp_path / "back")) == set(store) - {name}
    (reason,) = rejects(tmp_path / "back").values()
    assert reason.startswith("damaged: it is not what checksums.jsonl says was written (its checksum is another)")
    files[number].unlink()
    export_store(store.path, form, tmp_path / "files", ExportOptions(dtype="float16", model=model))
    assert main([*arguments, "--out", str(tmp_path / "back")]) == 0
    assert set(Store.open(tmp_path / "back")) == set(store)


def test_another_size_is_damage(tmp_path, store, model):
    files = exported(tmp_path / "files", store, model, "safetensors")
    with files[2].open("ab") as file:
        file.write(b"xy")
    size = files[2].stat().st_size
    assert import_folder(tmp_path / "files", "safetensors", tmp_path / "back", ImportOptions(model=model)).rejected == 1
    assert f"{size:,} bytes; {size - 2:,} are expected" in rejects(tmp_path / "back")["c.safetensors"]


@pytest.mark.parametrize("damaged", ["{", "7", "[]", '{"file": [], "bytes": 1, "modified_ns": 2, "xxh3": "x"}'])
def test_a_damaged_line_concerns_its_file_only(tmp_path, store, model, damaged):
    """Its file is as one that is not listed; the others are compared."""
    files = exported(tmp_path / "files", store, model, "safetensors")
    ledger = tmp_path / "files" / "checksums.jsonl"
    lines = [line for line in ledger.read_text().splitlines() if line]
    ledger.write_text("\n".join(damaged if '"a.safetensors"' in line else line for line in lines))
    flip_a_state(files[1], content("b", LENGTHS["b"], store.manifest)[2])
    summary = import_folder(tmp_path / "files", "safetensors", tmp_path / "back", ImportOptions(model=model))
    assert (summary.samples, summary.rejected, summary.exit_code) == (2, 1, 3)
    assert list(rejects(tmp_path / "back")) == ["b.safetensors"]


def test_a_ledger_that_can_not_be_read_is_said(tmp_path, store, model):
    exported(tmp_path / "files", store, model, "safetensors")
    (tmp_path / "files" / "checksums.jsonl").unlink()
    (tmp_path / "files" / "checksums.jsonl").mkdir()
    with pytest.raises(InputError, match=r"checksums.jsonl can't be read .* damaged files are told"):
        import_folder(tmp_path / "files", "safetensors", tmp_path / "back", ImportOptions(model=model))
    assert not (tmp_path / "back").exists()


def told(store, capsys):
    """(complete, expected samples, the text for people)"""
    capsys.readouterr()
    main(["verify", str(store), "--json"])
    document = json.loads(capsys.readouterr().out)
    main(["inspect", str(store)])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "extract " not in text
    return document["complete"], document["expected_samples"], text


def test_a_store_says_whether_the_whole_folder_is_in_it(tmp_path, store, model, capsys):
    files = exported(tmp_path / "files", store, model, "safetensors")
    back, options = tmp_path / "back", ImportOptions(model=model)
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[:-1])
    import_folder(tmp_path / "files", "safetensors", back, options)
    complete, expected, text = told(back, capsys)
    assert (complete, expected) == (False, 3)
    assert "no, 1 of 3 samples are missing; import-rejects.jsonl says what is wrong with 1; the same import" in text
    files[1].write_bytes(whole)
    import_folder(tmp_path / "files", "safetensors", back, options)
    complete, expected, text = told(back, capsys)
    assert (complete, expected) == (True, 3)
    assert "yes, all 3 samples" in text
    (back / "import.json").write_text('{"files": "many"}')
    complete, expected, text = told(back, capsys)
    assert (complete, expected) == (None, None)
    assert "not known, the import left no record; the same import stores what is missing" in text


def test_an_import_that_a_full_disk_cut_off_is_not_whole(tmp_path, store, model, monkeypatch, capsys):
    exported(tmp_path / "files", store, model, "safetensors")
    back, options = tmp_path / "back", ImportOptions(model=model)
    with monkeypatch.context() as patched:
        patched.setattr(job, "_store", full_after(1, job._store))
        with pytest.raises(DiskFullError):
            import_folder(tmp_path / "files", "safetensors", back, options)
    assert len(Store.open(back)) == 1
    complete, expected, text = told(back, capsys)
    assert (complete, expected) == (False, 3)
    assert "no, 2 of 3 samples are missing; the same import stores them" in text
    import_folder(tmp_path / "files", "safetensors", back, options)
    assert told(back, capsys)[:2] == (True, 3)


def full_after(samples, write):
    left = iter(range(samples))

    def write_or_fail(*arguments):
        if next(left, None) is None:
            raise DiskFullError("no room")
        return write(*arguments)

    return write_or_fail


def test_a_repair_takes_no_rejected_file_for_lost(tmp_path, store, model, capsys):
    files = exported(tmp_path / "files", store, model, "safetensors")
    files[0].write_bytes(b"")
    import_folder(tmp_path / "files", "safetensors", tmp_path / "back", ImportOptions(model=model))
    (shard,) = (tmp_path / "back").glob("shard-*/data.mdb")
    shard.unlink()
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "back"), "--repair"]) == 3
    said = capsys.readouterr().err
    assert "lost: 2 samples whose names are lost" in said
    assert "the same import stores whatever is missing" in said


def test_the_record_of_an_import_is_the_stores_own(tmp_path, store, model):
    exported(tmp_path / "files", store, model, "safetensors")
    import_folder(tmp_path / "files", "safetensors", tmp_path / "back", ImportOptions(model=model))
    own, foreign = store_files(tmp_path / "back")
    assert "import.json" in {str(file.path) for file in own}
    assert not foreign
