"""Removing a store: all of it, nothing else, never through a link, whole or repeatable after any interruption."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from store_cases import OPTIONS, a_manifest, a_store, add, many

from extractor import removal
from extractor.cli import main
from extractor.errors import StoreError
from extractor.imports.job import REJECTS
from extractor.manifest import REMOVING
from extractor.removal import removable, remove
from extractor.store import ShardWriter, Store, prepare_store
from extractor.store.rejects import Reject, add_rejects
from extractor.store_files import store_files
from extractor.store_users import users


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "old"
    a_store(path, many(40))
    (path / "runs").mkdir()
    (path / "runs" / "r.json").write_text("{}")
    (path / "runs" / "r.findings.jsonl").write_text("{}\n")
    (path / "runs" / "r.rank-0.error").write_text("no room")
    return path


def tree(path: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in sorted(path.rglob("*"))}


def test_every_file_that_a_writer_makes_is_known_as_the_stores(store):
    """If the store learns to write a new kind of file, this fails and removal must learn it."""
    add_rejects(store, [Reject(shard="shard-0000", reason="test")])
    (store / f".manifest.json.{os.getpid()}").write_text("cut off by a crash")
    for name in (".r.json.12", ".r.findings.jsonl.12", ".r.rank-0.error.12"):
        (store / "runs" / name).write_text("cut off by a crash")
    (store / REJECTS).write_text("")
    with ShardWriter(store, run_id="r2", writer=0, options=OPTIONS):
        own, foreign = store_files(store)
        assert foreign == []
    assert {str(file.path) for file in own} >= {
        "manifest.json",
        "shards.txt",
        "rejects.jsonl",
        "shard-0000/data.mdb",
        "runs/r.json",
    }
    assert {str(file.path) for file in own} == {k for k, v in tree(store).items() if v is not None} | {".writer-r2-0"}


def test_a_store_goes_whole_and_frees_what_it_occupied(store):
    occupied = sum(os.lstat(p).st_blocks * 512 for p in store.rglob("*") if p.is_file())
    assert removable(store).size_bytes == occupied
    removed = remove(store)
    assert not store.exists()
    assert removed.freed_bytes == occupied
    assert removed.kept == ()


def test_what_others_put_there_stays(store):
    (store / "notes.txt").write_text("mine")
    (store / "shard-0000" / "notes.txt").write_text("mine too")
    (store / "shard-9").mkdir()
    (store / "shard-9" / "data.mdb").write_text("not a shard's name")
    seen = removable(store)
    assert {str(path) for path in seen.foreign} == {"notes.txt", "shard-0000/notes.txt", "shard-9"}
    removed = remove(store)
    assert tree(store) == {
        "notes.txt": b"mine",
        "shard-0000": None,
        "shard-0000/notes.txt": b"mine too",
        "shard-9": None,
        "shard-9/data.mdb": b"not a shard's name",
    }
    assert {str(path) for path in removed.kept} == {"notes.txt", "shard-0000", "shard-9"}


def test_never_through_a_link(store, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "data.mdb").write_text("precious")
    (store / "shard-0007").symlink_to(outside, target_is_directory=True)
    (store / "runs" / "x.json").symlink_to(outside / "data.mdb")
    removed = remove(store)
    assert (outside / "data.mdb").read_text() == "precious"
    assert {str(path) for path in removed.kept} == {"runs", "shard-0007"}
    assert (store / "runs" / "x.json").is_symlink()


def test_a_link_to_a_store_is_refused(store, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(store, target_is_directory=True)
    before = tree(store)
    with pytest.raises(StoreError, match="link is a link; only a store's own folder"):
        remove(link)
    assert tree(store) == before


def test_a_folder_that_becomes_a_link_while_it_is_removed_is_not_followed(store, tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "data.mdb").write_text("precious")
    (outside / "lock.mdb").write_text("precious")
    moved = tmp_path / "moved"

    def swap(*arguments: object) -> int:
        (store / "shard-0000").rename(moved)
        (store / "shard-0000").symlink_to(outside, target_is_directory=True)
        return delete(*arguments)

    delete = removal._delete
    monkeypatch.setattr(removal, "_delete", swap)
    with pytest.raises(StoreError, match="removed in part"):
        remove(store)
    assert (outside / "data.mdb").read_text() == (outside / "lock.mdb").read_text() == "precious"


def test_a_file_that_becomes_a_link_while_it_is_removed_stays(store, tmp_path, monkeypatch):
    def swap(*arguments: object) -> int:
        (store / "runs" / "r.json").unlink()
        (store / "runs" / "r.json").symlink_to(tmp_path)
        return delete(*arguments)

    delete = removal._delete
    monkeypatch.setattr(removal, "_delete", swap)
    assert [str(path) for path in remove(store).kept] == ["runs"]
    assert (store / "runs" / "r.json").is_symlink()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "does not exist"),
        (lambda p: p.write_text("a file"), "can't be opened as a folder"),
        (lambda p: p.mkdir(), "is not a store"),
        (lambda p: (p.mkdir(), (p / "data.mdb").write_text("x"), (p / "shard-0000").mkdir()), "is not a store"),
        (lambda p: (p.mkdir(), (p / "manifest.json").write_text("[]")), "expected an object"),
        (lambda p: (p.mkdir(), (p / "manifest.json").write_text('{"name": "a web page"}')), "lacks"),
        (lambda p: (p.mkdir(), (p / "manifest.json").write_text("{")), "can't be read as JSON"),
    ],
)
def test_what_only_looks_like_a_store_is_refused(tmp_path, make, message):
    path = tmp_path / "x"
    make(path)
    before = tree(tmp_path)
    with pytest.raises(StoreError, match=message):
        remove(path)
    assert tree(tmp_path) == before


def test_a_manifest_that_is_a_link_does_not_make_a_store(store, tmp_path):
    path = tmp_path / "x"
    path.mkdir()
    (path / "shards.txt").write_text("not a store's\n")
    (path / "manifest.json").symlink_to(store / "manifest.json")
    with pytest.raises(StoreError, match="is a link, so .* only looks like a store"):
        remove(path)
    assert (path / "shards.txt").exists()


def test_interrupted_anywhere_and_repeated(tmp_path):
    """Ctrl-C before the n-th deletion, for every n: it never opens in part and can always be removed."""
    interruptions = 0
    for stop in range(100):
        path = tmp_path / f"store-{stop}"
        a_store(path, many(10))
        deleted = 0

        def tick(_file: object, stop: int = stop) -> None:
            nonlocal deleted
            if deleted == stop:
                raise KeyboardInterrupt
            deleted += 1

        try:
            remove(path, tick)
        except KeyboardInterrupt:
            interruptions += 1
        else:
            break
        if path.exists():
            with pytest.raises(StoreError, match="is not a store"):
                Store.open(path)
            if any(path.iterdir()):
                assert removable(path).begun
                remove(path)
        assert stop == 0 or interruptions > 1
    # manifest, list of shards, one shard; how many more depends on how busy the disk was
    assert interruptions >= 3


def test_killed_after_the_first_step_and_repeated(store):
    (store / "manifest.json").rename(store / REMOVING)
    seen = removable(store)
    assert seen.begun
    assert seen.manifest.model_name == "tiny"
    remove(store)
    assert not store.exists()


def test_a_file_that_can_not_be_deleted_leaves_a_store_to_go_on_with(store, monkeypatch):
    real = os.unlink

    def unlink(name: str, **options: int) -> None:
        if name == "data.mdb":
            raise PermissionError(1, "Operation not permitted")
        real(name, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(StoreError, match="removed in part .*not permitted.*run the same command again"):
        remove(store)
    monkeypatch.undo()
    remove(store)
    assert not store.exists()


def test_a_running_writer_is_named_and_the_store_stays(store):
    prepare_store(store, a_manifest())
    with ShardWriter(store, run_id="r3", writer=0, options=OPTIONS):
        with pytest.raises(StoreError, match=rf"is open in process {os.getpid()} "):
            remove(store)
        assert (store / "manifest.json").exists()
    remove(store)


def test_another_process_that_reads_is_named(store):
    script = (
        f"import time; f = open({str(store / 'shard-0000' / 'data.mdb')!r}, 'rb'); print(1, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as reader:
        try:
            assert reader.stdout is not None
            reader.stdout.readline()
            assert [user.pid for user in users(store)] == [reader.pid]
            with pytest.raises(StoreError, match=f"process {reader.pid} "):
                remove(store)
        finally:
            reader.kill()
    assert users(store) == []


def test_a_reader_that_comes_in_between_gets_its_store_back(store, monkeypatch):
    looks: list[Path] = []

    def seen(path: Path) -> list[object]:
        looks.append(path)
        return [] if len(looks) == 1 else ["process 7 (late)"]

    monkeypatch.setattr(removal, "users", seen)
    with pytest.raises(StoreError, match=r"process 7 \(late\)"):
        remove(store)
    assert len(Store.open(store)) == 40


def test_a_writer_in_another_container_is_seen_by_its_lock(store):
    lock = store / ".writer-r9-0"
    script = f"""
import fcntl, os, time
fcntl.flock(os.open({str(lock)!r}, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
print(1, flush=True)
time.sleep(60)"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            assert 0 in [user.pid for user in users(store)]  # it wrote no process id of this machine
        finally:
            writer.kill()


def test_hard_links_free_nothing(store, tmp_path):
    data = store / "shard-0000" / "data.mdb"
    os.link(data, tmp_path / "copy.mdb")
    seen = removable(store)
    assert seen.size_bytes - seen.freed_bytes == data.stat().st_blocks * 512
    assert remove(store).freed_bytes == seen.freed_bytes
    assert (tmp_path / "copy.mdb").stat().st_size > 0


# --- the command


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_the_command_shows_the_store_and_asks_for_its_name(store, monkeypatch, capsys):
    answer(monkeypatch, "old\n")
    size = removable(store).size_bytes
    assert main(["remove", str(store)]) == 0
    captured = capsys.readouterr()
    assert "tiny, layers 2, 3, 5, 6, float16" in captured.err
    assert "40 samples" in captured.err
    assert f"({size:,} bytes)" in captured.err
    assert "Type the store's name (old)" in captured.err
    assert f"{size:,} bytes" in captured.out
    assert not store.exists()


@pytest.mark.parametrize(("text", "code"), [("yes\n", 1), ("\n", 1), ("", 2)])
def test_another_answer_removes_nothing(store, monkeypatch, capsys, text, code):
    answer(monkeypatch, text)
    assert main(["remove", str(store)]) == code
    assert len(Store.open(store)) == 40


def test_yes_does_not_ask(store, capsys):
    size = removable(store).freed_bytes
    assert main(["remove", str(store), "--yes", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["freed_bytes"] == size
    assert document["kept"] == []


def test_a_folder_that_is_no_store_exits_with_1(tmp_path, capsys):
    assert main(["remove", str(tmp_path), "--yes"]) == 1
    assert "is not a store" in capsys.readouterr().err


def test_a_folder_that_the_disk_keeps_is_told_and_removed_later(store, monkeypatch):
    """With the manifest gone it would be no store any more, and nothing would remove it."""

    def refuse(*args, **kwargs):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)
        with pytest.raises(StoreError, match="removed in part"):
            remove(store)
    remove(store)
    assert not store.exists()


@pytest.mark.parametrize("damage", ["root", "lost", "cut off", "root of a killed writer's"])
def test_a_damaged_store_can_be_removed(store, damage):
    """Looking at it kept its files open, and so it was in use, by the removal itself."""
    add(store, {"more": 5}, a_manifest(), run_id="more")
    file = store / "shard-0000" / "data.mdb"
    if damage == "lost":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:9000] if damage == "cut off" else bytes(9000))
    if "killed" in damage:
        (file.parent / "lock.mdb").touch()
    collecting = gc.isenabled()
    gc.disable()  # which would close the files at a time of its own
    try:
        assert main(["remove", "--yes", str(store)]) == 0
    finally:
        if collecting:
            gc.enable()
    assert not store.exists()
