"""Room on a filesystem: reserved blocks, quotas, paths that do not exist yet, and the refusal with both numbers."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from extractor import disk
from extractor.errors import DiskFullError, StoreError


def fake_statvfs(monkeypatch: pytest.MonkeyPatch, *, blocks: int, free: int, available: int) -> None:
    stat = SimpleNamespace(f_frsize=4096, f_blocks=blocks, f_bfree=free, f_bavail=available)
    monkeypatch.setattr(os, "statvfs", lambda _: stat)


def test_reserved_blocks_are_not_free(tmp_path, monkeypatch):
    fake_statvfs(monkeypatch, blocks=1000, free=300, available=250)
    space = disk.disk_space(tmp_path)
    assert (space.total_bytes, space.free_bytes, space.reserved_bytes) == (1000 * 4096, 250 * 4096, 50 * 4096)


@pytest.mark.parametrize(("quota", "free"), [(None, 250 * 4096), (1000, 1000), (10**12, 250 * 4096), (0, 0)])
def test_a_quota_bounds_what_is_free(tmp_path, monkeypatch, quota, free):
    fake_statvfs(monkeypatch, blocks=1000, free=300, available=250)
    monkeypatch.setattr(disk, "_quota_left", lambda _: quota)
    assert disk.free_bytes(tmp_path) == free
    assert disk.disk_space(tmp_path).quota_left_bytes == quota


@pytest.mark.parametrize(
    ("hard", "soft", "space", "left"),
    [
        (100, 50, 10 * 1024, 90 * 1024),
        (0, 50, 10 * 1024, 40 * 1024),
        (0, 0, 10 * 1024, None),
        (100, 0, 200 * 1024, 0),
    ],
)
def test_quota_limits_are_blocks_of_1024_and_used_space_is_bytes(monkeypatch, hard, soft, space, left):
    def syscall(number, descriptor, command, who, out):
        assert (number.value, command.value, who.value) == (443, 0x800007 << 8 | 1, 77)
        out._obj.hard, out._obj.soft, out._obj.space = hard, soft, space
        return 0

    monkeypatch.setattr(disk.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(syscall=syscall))
    assert disk._left(3, disk._GROUP, 77) == left


def test_a_kernel_without_quotas_says_none(monkeypatch):
    monkeypatch.setattr(disk.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(syscall=lambda *_: -1))
    assert disk._left(3, disk._USER, 0) is None


def test_the_real_filesystem_agrees_with_statvfs(tmp_path):
    stat = os.statvfs(tmp_path)
    space = disk.disk_space(tmp_path / "not" / "there" / "yet")
    assert space.total_bytes == stat.f_blocks * stat.f_frsize
    assert 0 < space.free_bytes <= space.total_bytes


def test_require_room_refuses_with_both_numbers(tmp_path, monkeypatch):
    fake_statvfs(monkeypatch, blocks=1000, free=300, available=250)
    assert disk.require_room(tmp_path, 250 * 4096) == 250 * 4096
    with pytest.raises(DiskFullError, match=r"needs 1,024,001 bytes .* has 1,024,000 bytes free .* 1 too few") as error:
        disk.require_room(tmp_path, 250 * 4096 + 1)
    assert error.value.exit_code == 1
    assert "--force" in str(error.value)


def test_force_starts_all_the_same(tmp_path, monkeypatch):
    fake_statvfs(monkeypatch, blocks=1000, free=300, available=250)
    assert disk.require_room(tmp_path, 10**15, force=True) == 250 * 4096


def test_a_filesystem_that_vanishes_is_named(tmp_path, monkeypatch):
    def vanished(_: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "statvfs", vanished)
    with pytest.raises(StoreError, match=rf"{tmp_path}.*does not answer \(Input/output error\).*mounted"):
        disk.free_bytes(tmp_path)
