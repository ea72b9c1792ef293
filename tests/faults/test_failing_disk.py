"""Full disks, failing disks and read-only ones, at every position of a run."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from store_samples import write_samples
from workload import MANIFEST, OPTIONS, assert_whole, samples, write_missing

from extractor.errors import DiskFullError, StoreError
from extractor.integrity import check_store
from extractor.store import ShardWriter, Store, prepare_store

CASES = 8  # operations that fail in the short form; the long form fails each in turn


def check_results(results, allowed):
    assert len(results) > 3
    assert [result for result in results if result[2] is not None] == []
    kinds = {result[0] for result in results}
    assert kinds <= allowed, [result for result in results if result[0] not in allowed]
    # A shard is whole without its summary, for which the last reservation of each lane is.
    assert sum(result[0] == "none" for result in results) <= OPTIONS.lanes
    for kind, message, _ in results:
        assert kind == "none" or "sealed before" in message or "can't be" in message, message


@pytest.mark.parametrize("cases", [CASES, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "error", "is_short", "allowed"),
    [
        ("reserve", "ENOSPC", 0, {"DiskFullError", "none"}),
        ("reserve", "EOPNOTSUPP", 0, {"none"}),
        ("write", "EIO", 0, {"StoreError"}),
        ("write", "ENOSPC", 1, {"StoreError", "DiskFullError"}),
        ("sync", "EIO", 0, {"StoreError"}),
    ],
)
def test_each_operation_fails_once(preload, tmp_path, kind, error, is_short, allowed, cases):
    """The run stops with a clear error, acknowledged samples are there, and the next run finishes."""
    results = preload("failing_writes.py", tmp_path, kind, error, is_short, cases)
    if allowed == {"none"}:
        assert {result[0] for result in results} == {"none"}
        assert {result[2] for result in results} == {None}
    else:
        check_results(results, allowed)


@pytest.mark.parametrize("kib", [64, 256, 512, 900, 1400])
def test_a_disk_that_fills_up(mount, tmp_path, kib):
    """On a real file system of a few hundred KiB; the next run goes on once there is room."""
    point = mount("size=8m")
    path = prepare_store(point / "s", MANIFEST).path
    ballast = point / "ballast"
    free = os.statvfs(point).f_bavail * 4096
    with ballast.open("wb") as handle:
        os.posix_fallocate(handle.fileno(), 0, free - kib * 1024)
    acknowledged = []
    with pytest.raises(DiskFullError, match="no room.*free space and run the same command again"):
        write_missing(path, "r", acknowledged.extend)
    assert_whole(prepare_store(path, MANIFEST), acknowledged)
    ballast.unlink()
    write_missing(path, "again")
    assert_whole(Store.open(path, check=True), samples())
    assert check_store(path).ok


def test_a_read_only_store_can_be_read_and_not_written(mount):
    point = mount("size=8m")
    path = prepare_store(point / "s", MANIFEST).path
    write_missing(path, "r", options=OPTIONS)
    subprocess.run(["mount", "-o", "remount,ro", point], check=True)
    assert_whole(prepare_store(path, MANIFEST), samples())
    assert check_store(path).ok
    with pytest.raises(StoreError, match="can't be written.*Read-only"):
        ShardWriter(path, run_id="new", writer=0)
    with pytest.raises(StoreError, match="can't be made.*Read-only"):
        prepare_store(point / "other", MANIFEST)


@pytest.fixture
def somebody():
    """A folder of an ordinary user, whom the test runs as: root may write everywhere."""
    user = os.geteuid() or 65534
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, user, -1)
        os.seteuid(user)
        yield Path(folder)
        os.seteuid(os.getuid())


def test_a_store_without_permission(somebody):
    path = prepare_store(somebody / "s", MANIFEST).path
    write_samples(path, samples())
    path.chmod(0o500)
    with pytest.raises(StoreError, match="can't be written"):
        ShardWriter(path, run_id="new", writer=0)
    assert_whole(Store.open(path), samples())
    path.chmod(0)
    with pytest.raises(StoreError, match="Permission denied"):
        Store.open(path)
    path.chmod(0o700)
    assert_whole(Store.open(path), samples())
