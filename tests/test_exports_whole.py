"""An export's files are whole and its own, or written anew; what keeps them from being written is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from models import save_final_norm
from power import Survivors
from store_cases import a_store, many

from extractor.cli import main
from extractor.errors import DiskFullError, StoreError
from extractor.exports import ExportOptions, export_store, ledger

LENGTHS = {"a": 5, "b/ü": 21, "c": 1}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return a_store(tmp_path_factory.mktemp("exports") / "store", LENGTHS)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_final_norm(tmp_path_factory.mktemp("model"))


def test_a_second_run_writes_damaged_and_foreign_files_anew(tmp_path, store):
    out = tmp_path / "out"
    export_store(store.path, "modelopt", out)
    files = sorted(out.glob("*.pt"))
    whole = {file: file.read_bytes() for file in files}
    same, junk, flipped = files
    junk.write_text("junk\n")
    middle = len(whole[flipped]) // 2
    flipped.write_bytes(whole[flipped][:middle] + b"x" + whole[flipped][middle + 1 :])
    os.utime(flipped, (1e9, 1e9))
    os.utime(same, (1e9, 1e9))  # as a copy has it: only its bytes can tell
    summary = export_store(store.path, "modelopt", out)
    assert (summary.written, summary.kept) == (2, 1)
    assert {file: file.read_bytes() for file in files} == whole
    assert same.stat().st_mtime == 1e9


@pytest.mark.parametrize("damage_ledger", [b"", b'{"file": "a.p', b'[1]\n{"file": 3}\n\xff\n'])
def test_without_a_ledger_nothing_is_trusted(tmp_path, store, damage_ledger):
    out = tmp_path / "out"
    export_store(store.path, "modelopt", out)
    (out / "checksums.jsonl").write_bytes(damage_ledger)
    assert export_store(store.path, "modelopt", out).written == 3
    assert export_store(store.path, "modelopt", out).kept == 3, "a cut line must not spoil the next one"


def test_a_marker_that_cannot_be_read(tmp_path, store):
    export_store(store.path, "modelopt", tmp_path / "out")
    for damaged in ("junk", "[]"):
        (tmp_path / "out" / "export.json").write_text(damaged)
        with pytest.raises(StoreError, match="export anew into another folder"):
            export_store(store.path, "modelopt", tmp_path / "out")


@pytest.mark.parametrize("to", ["speculators", "specforge", "modelopt", "safetensors"])
def test_what_is_exported_survives_a_power_cut(tmp_path, store, model, monkeypatch, to):
    if to == "speculators":
        pytest.importorskip("datasets")
    power = Survivors(monkeypatch)
    export_store(store.path, to, tmp_path / "out", ExportOptions(model=model))
    assert len(list((tmp_path / "out").rglob("*"))) > 5
    assert power.lost(tmp_path / "out") == []


def test_files_are_listed_once_they_are_durable(tmp_path, monkeypatch):
    """In groups: an export that dies has listed what survives, and goes on from there."""
    source = a_store(tmp_path / "store", many(40))
    monkeypatch.setattr(ledger, "_GROUP_FILES", 8)
    power = Survivors(monkeypatch)
    append, lengths = ledger._append, []

    def checked(place, data):
        listed = [json.loads(line)["file"] for line in data.decode().splitlines() if line]
        assert not set(listed) & set(power.lost(tmp_path / "out"))
        lengths.append(len(listed))
        if len(lengths) >= 4:
            raise OSError(5, "Input/output error")
        append(place, data)

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_append", checked)
        with pytest.raises(StoreError, match="checksums.jsonl can't be written"):
            export_store(source.path, "modelopt", tmp_path / "out")
    assert lengths[:4] == [8, 8, 8, 8]
    summary = export_store(source.path, "modelopt", tmp_path / "out")
    assert (summary.kept, summary.written) == (24, 16)


def test_room_is_looked_for_again_when_an_export_goes_on(tmp_path, store, monkeypatch):
    """For what is missing only: 21 of 27 tokens, of 4 states of 16 values of 2 bytes."""
    out = tmp_path / "out"
    export_store(store.path, "safetensors", out)
    lines = (out / "checksums.jsonl").read_text().splitlines(keepends=True)
    (out / "checksums.jsonl").write_text("".join(line for line in lines if "%2F" not in line))
    free = {"bytes": 21 * 128 - 1}
    monkeypatch.setattr("extractor.disk.free_bytes", lambda _: free["bytes"])
    with pytest.raises(DiskFullError, match="needs 2,688 bytes .* has 2,687 bytes free"):
        export_store(store.path, "safetensors", out)
    free["bytes"] += 1
    assert export_store(store.path, "safetensors", out).written == 1
    free["bytes"] = 0
    assert export_store(store.path, "safetensors", out).kept == 3


def test_files_that_cannot_be_made_durable_are_not_listed(tmp_path, store, monkeypatch):
    def fail(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "make_durable", fail)
        with pytest.raises(StoreError, match="out can't be written .Input/output error."):
            export_store(store.path, "modelopt", tmp_path / "out")
    assert not (tmp_path / "out" / "samples.jsonl").exists()
    assert export_store(store.path, "modelopt", tmp_path / "out").written == 3


def limited(arguments, size_bytes):
    """The command in a process that may write files of `size_bytes` at most."""
    code = f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({size_bytes}, {size_bytes})); "
    code += "from extractor.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-B", "-c", code, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.parametrize(("to", "allowed"), [("specforge", 1000), ("safetensors", 500), ("speculators", 800)])
def test_what_cannot_be_written_is_one_line(tmp_path, store, model, to, allowed):
    """torch, safetensors and datasets each wrap the system's error in one of their own."""
    if to == "speculators":
        pytest.importorskip("datasets")
    arguments = ["export", store.path, "--to", to, "--model", model, "--out", tmp_path / "out"]
    arguments += ["--index-only"] if to == "speculators" else []
    done = limited(arguments, allowed)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "can't be written: a file of it is larger than this process may write; raise the limit" in done.stderr
    assert not (tmp_path / "out" / "state.json").exists()
    assert not list((tmp_path / "out").glob(".*"))


def test_weights_that_cannot_be_read(tmp_path, store, model, capsys):
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    (tmp_path / "m.safetensors").write_text("junk")
    arguments = ["export", str(store.path), "--to", "specforge", "--model", str(tmp_path), "--out", str(tmp_path / "o")]
    assert main(arguments) == 1
    assert f"{tmp_path / 'm.safetensors'} can't be read" in capsys.readouterr().err


def test_speculators_missing_is_said_with_what_to_install(monkeypatch):
    from extractor.exports import speculators_train

    monkeypatch.setitem(sys.modules, "hs_connectors", None)
    monkeypatch.delitem(sys.modules, "extractor.exports.speculators_backend", raising=False)
    with pytest.raises(SystemExit, match="the package hs_connectors is missing.*pip install speculators"):
        speculators_train.main()


def test_a_folder_that_may_not_be_written(tmp_path, store, monkeypatch, capsys):
    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", forbidden)
    assert main(["export", str(store.path), "--to", "modelopt", "--out", str(tmp_path / "out")]) == 1
    assert "can't be written (Permission denied); change its permissions" in capsys.readouterr().err


def test_a_failed_data_set_leaves_the_earlier_one(tmp_path, store, monkeypatch):
    pytest.importorskip("datasets")
    from extractor.exports import speculators

    def fail(*_):
        raise OSError(28, "No space left on device")

    options = ExportOptions(index_only=True)
    export_store(store.path, "speculators", tmp_path / "out", options)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert {"state.json", "dataset_info.json", "token_freq.pt"} < set(before)
    with monkeypatch.context() as patch:
        patch.setattr(speculators, "_token_counts", fail)
        with pytest.raises(DiskFullError, match="no room to write"):
            export_store(store.path, "speculators", tmp_path / "out", options)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
