"""Room on a filesystem: reserved blocks, quotas, paths that do not exist yet, and the refusal with both numbers."""

from __future__ import annotations

import ctypes
import os
import subprocess
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from power import Survivors

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


def test_a_watch_warns_once_until_it_fits_again(tmp_path, monkeypatch):
    available = {"bytes": 100}
    monkeypatch.setattr(disk, "free_bytes", lambda _: available["bytes"])
    watch = disk.RoomWatch(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert watch.check(100)
    with pytest.warns(UserWarning, match=r"still needs 101 bytes .* only 100 bytes .* are free now"):
        assert not watch.check(101)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not watch.check(150)
        available["bytes"] = 1000
        assert watch.check(150)
    available["bytes"] = 0
    with pytest.warns(UserWarning, match="still needs 10 bytes"):
        watch.check(10)


def test_the_quota_record_has_the_kernels_layout():
    """struct if_dqblk: eight 64-bit fields and one of 32 bits, padded."""
    assert ctypes.sizeof(disk._Quota) == 72
    assert (disk._Quota.space.offset, disk._Quota.valid.offset) == (16, 64)


@pytest.fixture
def real_ext4(tmp_path):
    """A file system of 64 MiB with 20% reserved blocks, mounted; skipped where that is not allowed."""
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "20", str(image)], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(mount)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be made and mounted here: {error}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_reserved_blocks_of_a_real_file_system(real_ext4):
    space = disk.disk_space(real_ext4 / "store")
    reserved = (64 << 20) // 5
    assert reserved <= space.reserved_bytes < reserved * 1.2  # the kernel keeps some clusters of its own besides
    assert space.free_bytes + space.reserved_bytes < space.total_bytes
    with pytest.raises(DiskFullError):
        disk.require_room(real_ext4, space.free_bytes + 1)


def test_a_filesystem_that_vanishes_is_named(tmp_path, monkeypatch):
    def vanished(_: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "statvfs", vanished)
    with pytest.raises(StoreError, match=rf"{tmp_path}.*does not answer \(Input/output error\).*mounted"):
        disk.free_bytes(tmp_path)


def test_extract_checks_the_room_before_and_while_it_runs(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    from models import save_tiny_llama

    from extractor import Config, Store, extract
    from extractor.samples import write_samples

    model = save_tiny_llama(tmp_path / "model", num_layers=8)
    write_samples(tmp_path / "samples.parquet", [{"sample_id": "a", "input_ids": [1, 2, 3, 4]}])
    config = Config(samples=tmp_path / "samples.parquet", model=model, out=tmp_path / "store", engine="transformers")
    monkeypatch.setattr(disk, "free_bytes", lambda _: 10)
    with pytest.raises(DiskFullError, match=r"needs 10,260 bytes .* has 10 bytes free"):
        extract(config)
    assert not config.out.exists()
    power = Survivors(monkeypatch)
    with pytest.warns(UserWarning, match=r"still needs 10,260 bytes .* only 10 bytes .* are free now"):
        extract(replace(config, force=True))
    assert list(Store.open(config.out)) == ["a"]
    assert list((config.out / "runs").glob("*.json"))
    assert [file for file in power.lost(config.out) if not file.startswith(".writer-")] == []
