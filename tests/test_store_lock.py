"""Lock files: what a killed writer leaves goes with the next run, what a living one holds stays."""

from __future__ import annotations

import os
import subprocess
import sys

from extractor.store.lock import RunLock, WriterLock, live_writers

HOLD = "import sys; from pathlib import Path; from extractor.store.lock import WriterLock; \
WriterLock(Path(sys.argv[1]), 'r1', 0); print('held', flush=True); sys.stdin.read()"


def names(path):
    return sorted(file.name for file in path.iterdir())


def holder(path):
    """A process that holds the lock of writer 0 of run r1."""
    command = [sys.executable, "-c", HOLD, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_what_a_killed_writer_left_goes_with_the_next_run(tmp_path):
    process = holder(tmp_path)
    assert live_writers(tmp_path) == [str(process.pid)]
    living = WriterLock(tmp_path, "r2", 0)
    assert names(tmp_path) == [".writer-r1-0", ".writer-r2-0"]
    living.release()
    process.kill()
    process.communicate()
    assert names(tmp_path) == [".writer-r1-0"]
    again = WriterLock(tmp_path, "r3", 0)
    assert names(tmp_path) == [".writer-r3-0"]
    again.release()
    assert names(tmp_path) == []


def test_locks_of_the_same_run_of_the_run_and_of_starting_writers_stay(tmp_path):
    (tmp_path / ".writer-r1-1").write_text("1")
    (tmp_path / ".writer-r9-0").touch()
    with RunLock(tmp_path, shared=False):
        pass
    before = names(tmp_path)
    lock = WriterLock(tmp_path, "r1", 0)
    assert names(tmp_path) == sorted([*before, ".writer-r1-0"])
    lock.release()


def test_a_file_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    from extractor.store import lock as module

    real, removed = module._try_lock, []

    def remove_first(fd, **options):
        if not removed:
            removed.append(1)
            os.unlink(tmp_path / ".writer-r1-0")
        return real(fd, **options)

    monkeypatch.setattr(module, "_try_lock", remove_first)
    held = WriterLock(tmp_path, "r1", 0)
    assert live_writers(tmp_path) == [str(os.getpid())]
    held.release()
