"""SIGKILL at random moments, with and without readers; a second writer; clocks that jump."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time

import pytest
from children import exit_of, in_child
from workload import MANIFEST, OPTIONS, assert_whole, samples, write_missing

from extractor.errors import StoreError
from extractor.integrity import check_store
from extractor.store import ShardWriter, Store, prepare_store


def run_until_killed(path, acknowledged, run_id, seconds):
    """Start the run in a child, kill it after `seconds`; returns its exit code."""

    def work():
        with acknowledged.open("a", buffering=1) as told:
            write_missing(path, run_id, lambda names: told.write("".join(name + "\n" for name in names)))

    pid = in_child(work)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return exit_of(pid)


def seconds_of_a_run(path):
    """How long a run takes here when nobody kills it: kills spread over that time hit on fast and slow machines."""
    prepare_store(path, MANIFEST)
    started = time.monotonic()
    assert exit_of(in_child(lambda: write_missing(path, "whole"))) == 0
    return time.monotonic() - started


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_random_moments_and_restarted(tmp_path, kills):
    rng = random.Random(kills)
    path, acknowledged = prepare_store(tmp_path / "s", MANIFEST).path, tmp_path / "acknowledged"
    acknowledged.touch()
    longest = seconds_of_a_run(tmp_path / "whole")
    killed = attempt = 0
    while killed < kills:
        assert attempt < 10 * kills, f"only {killed} of {attempt} kills came before the run was over"
        if len(Store.open(path)) == len(samples()):
            shutil.rmtree(path)
            prepare_store(path, MANIFEST)
            acknowledged.write_text("")
        code = run_until_killed(path, acknowledged, f"r{attempt}", rng.uniform(0, longest))
        killed += code == -signal.SIGKILL
        attempt += 1
        assert code in (0, -signal.SIGKILL)
        assert_whole(prepare_store(path, MANIFEST), acknowledged.read_text().split())
    write_missing(path, "last")
    store = Store.open(path, check=True)
    assert set(store) == set(samples())
    assert_whole(store)
    assert check_store(path).ok


def test_readers_see_whole_samples_while_a_writer_works_and_dies(tmp_path):
    path = prepare_store(tmp_path / "s", MANIFEST).path
    done = tmp_path / "done"

    def read():
        while not done.exists():
            assert_whole(Store.open(path, check=True))

    readers = [in_child(read) for _ in range(3)]
    for run in range(8):
        run_until_killed(path, tmp_path / "acknowledged", f"r{run}", 0.1)
    write_missing(path, "last")
    done.touch()
    assert [exit_of(pid) for pid in readers] == [0, 0, 0]


def test_second_writer_in_another_process_is_refused_with_the_first_ones_id(tmp_path):
    path = prepare_store(tmp_path / "s", MANIFEST).path

    def second():
        with pytest.raises(StoreError, match=f"in use by process {os.getppid()}"):
            ShardWriter(path, run_id="r", writer=0)

    with ShardWriter(path, run_id="r", writer=0):
        assert exit_of(in_child(second)) == 0
    with ShardWriter(path, run_id="r", writer=0):
        pass


def test_clocks_that_jump_change_nothing(tmp_path, monkeypatch):
    path = prepare_store(tmp_path / "s", MANIFEST).path
    rng = random.Random(0)
    monkeypatch.setattr(time, "monotonic", lambda: rng.uniform(0, 1e6))
    monkeypatch.setattr(time, "time", lambda: rng.uniform(0, 2e9))
    write_missing(path, "r", options=OPTIONS)
    assert_whole(Store.open(path, check=True), samples())


def test_a_writer_dies_with_its_process_id_still_in_the_lock(tmp_path):
    """The lock is the kernel's, not the file's: what a dead process left behind stops nobody."""
    path = prepare_store(tmp_path / "s", MANIFEST).path

    def work():
        ShardWriter(path, run_id="r", writer=0)
        os.kill(os.getpid(), signal.SIGKILL)

    assert exit_of(in_child(work)) == -signal.SIGKILL
    write_missing(path, "r")
    assert_whole(Store.open(path), samples())
