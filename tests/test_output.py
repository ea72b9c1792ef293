"""Files appear whole or not at all; what keeps them from it is said in a person's words."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from power import Survivors

from extractor.errors import DiskFullError, StoreError
from extractor.output import make_durable, replace_all, write_early, write_error, write_whole


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """(scratch, out): two new files, one of which replaces an old one."""
    scratch, out = tmp_path / "scratch", tmp_path / "out"
    for folder, files in ((scratch, {"a": "new a", "b": "new b", "c": "new c"}), (out, {"a": "old a", "x": "other"})):
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    return scratch, out


def test_all_files_are_replaced(folders: tuple[Path, Path]) -> None:
    scratch, out = folders
    replace_all(scratch, out, ("a", "b", "c"))
    assert contents(out) == {"a": "new a", "b": "new b", "c": "new c", "x": "other"}
    assert list(scratch.iterdir()) == []
    replace_all(scratch, out, ("a", "never there"))
    assert contents(out) == {"b": "new b", "c": "new c", "x": "other"}, "what is not made any more goes"


@pytest.mark.parametrize("links", [True, False])
def test_one_that_cannot_be_replaced_keeps_all(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    scratch, out = folders
    (out / "c").mkdir()
    (out / "c" / "thesis").write_text("mine")
    with pytest.raises(IsADirectoryError):
        replace_all(scratch, out, ("a", "b", "c"))
    assert contents(out) == {"a": "old a", "x": "other"}
    assert contents(out / "c") == {"thesis": "mine"}


def test_an_interrupt_between_two_files_keeps_all(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, out = folders
    real = os.replace

    def interrupted(source: Path, target: Path) -> None:
        if Path(source) == scratch / "b":
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_all(scratch, out, ("x", "a", "b", "c"))
    assert contents(out) == {"a": "old a", "x": "other"}


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "f", b"old")

    def full(path: Path, data: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DiskFullError, match=f"no room to write {tmp_path / 'f'}"):
        write_whole(tmp_path / "f", b"new")
    assert contents(tmp_path) == {"f": "old"}


def test_what_was_written_survives_a_power_cut(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, out = folders
    power = Survivors(monkeypatch)
    assert power.lost(out) == ["a", "x"]
    write_whole(out / "new" / "deep" / "f", b"1")
    replace_all(scratch, out, ("a", "b", "c"))
    assert power.lost(out) == ["x"], "the others are durable, with the folders that they needed"
    write_early(out / "many" / "f", b"1")
    write_whole(out / "x", b"2")
    assert power.lost(out) == ["many/f"]
    make_durable([out / "many" / "f"])
    assert power.lost(out) == []
    (out / "x").write_bytes(b"3")
    assert power.lost(out) == ["x"], "a later change is not durable with the earlier one"


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EFBIG, "larger than this process may write; raise the limit"),
        (errno.EACCES, r"can't be written \(Permission denied\); change its permissions"),
        (errno.EROFS, r"\(Read-only file system\); change its permissions, or pass a place of your own"),
        (errno.ENOTDIR, r"\(Not a directory\); pass a place where files can be made"),
        (errno.EDQUOT, r"no room to write .*; free some"),
    ],
)
def test_each_cause_has_its_own_advice(number: int, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        raise write_error(OSError(number, os.strerror(number)), Path("/x/y"))
