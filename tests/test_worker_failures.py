"""What a rank does when it fails: vLLM may drop what a step raises, so the rank keeps it and tells by other ways."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from extractor.engines.job import rank_error_file
from extractor.engines.vllm import worker as worker_module
from extractor.engines.vllm.worker import BaseWorker, ExtractorWorker
from extractor.errors import DiskFullError, EngineError


class Calls:
    """A handover and a runner in one; `failing` names the call that raises `error`."""

    def __init__(self, failing: str, error: Exception) -> None:
        self.made: list[str] = []
        self._failing, self._error = failing, error

    def __getattr__(self, name: str):
        def call(*_: object) -> dict[str, int]:
            self.made.append(name)
            if name == self._failing:
                raise self._error
            return {"samples": 3}

        return call


@pytest.fixture
def rank(tmp_path: Path, monkeypatch):
    """`rank(failing, error)`: a worker amid a run; no engine behind it."""
    monkeypatch.setattr(BaseWorker, "execute_model", lambda *_: "the output")
    monkeypatch.setattr(BaseWorker, "shutdown", lambda self: self.model_runner.shutdown())
    (tmp_path / "runs").mkdir()

    def make(failing: str, error: Exception) -> ExtractorWorker:
        worker = ExtractorWorker.__new__(ExtractorWorker)
        worker._handover, worker._runner_view = Calls(failing, error), Calls("", error)
        worker.model_runner = Calls("", error)
        worker._job, worker._rank = SimpleNamespace(store=tmp_path, run_id="r"), 1
        return worker

    return make


def test_a_failed_step_does_not_raise_and_is_told_ever_after(rank):
    worker = rank("step", DiskFullError("no room to write"))
    handover, runner = worker._handover, worker._runner_view
    assert [worker.execute_model(None) for _ in range(3)] == ["the output"] * 3
    assert handover.made == ["step"], "nothing more is taken"
    assert runner.made == ["step", "step"], "the other ranks wait in its collective"
    assert rank_error_file(worker._job, 1).read_text() == "no room to write"
    for _ in range(2):
        with pytest.raises(EngineError, match="^no room to write$") as told:
            worker.extractor_status()
        assert not getattr(told.value, "__notes__", []), "a new exception each time: vLLM adds notes to what it gets"
    with pytest.raises(EngineError, match="^no room to write$"):
        worker.extractor_finish()
    assert handover.made == ["step", "finish"], "what is whole is sealed all the same"


def test_the_first_failure_is_the_reason(rank):
    worker = rank("step", DiskFullError("first"))
    worker.execute_model(None)
    worker._handover._failing, worker._handover._error = "finish", EngineError("second")
    with pytest.raises(EngineError, match="^first$"):
        worker.extractor_finish()
    assert rank_error_file(worker._job, 1).read_text() == "first"


def test_a_failure_of_ours_comes_with_its_traceback(rank):
    worker = rank("step", ZeroDivisionError("a fault of the program"))
    worker.execute_model(None)
    text = rank_error_file(worker._job, 1).read_text()
    assert text.startswith("Traceback")
    assert "a fault of the program" in text


def test_a_rank_that_can_not_start_says_why(rank, tmp_path, monkeypatch):
    """Its words would else be vLLM's: that a worker failed."""
    worker = rank("", EngineError("never"))
    worker.device = None
    monkeypatch.setattr(worker_module, "get_tp_group", lambda: SimpleNamespace(rank_in_group=1, world_size=8))
    monkeypatch.setattr(worker_module.Job, "from_dict", lambda job: SimpleNamespace(store=tmp_path, run_id="r"))

    def refuse(*_: object) -> None:
        raise EngineError("the CUDA driver refused to pin slot 3 of 14")

    monkeypatch.setattr(worker_module, "Handover", refuse)
    with pytest.raises(EngineError, match="^the CUDA driver refused to pin slot 3 of 14$"):
        worker.extractor_start({})
    assert rank_error_file(worker._job, 1).read_text() == "the CUDA driver refused to pin slot 3 of 14"


def test_a_failure_in_the_end_is_told(rank):
    worker = rank("finish", EngineError("the last commit failed"))
    assert worker.extractor_status() == {"samples": 3}
    with pytest.raises(EngineError, match="the last commit failed"):
        worker.extractor_finish()


def test_a_disk_that_takes_no_reason_either(rank, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(worker_module, "write_atomically", refuse)
    worker = rank("step", DiskFullError("no room to write"))
    assert worker.execute_model(None) == "the output"
    with pytest.raises(EngineError, match="no room to write"):
        worker.extractor_status()


@pytest.mark.parametrize("failing", ["", "close"])
def test_a_shutdown_in_the_middle_closes_the_shard(rank, failing):
    worker = rank(failing, OSError("disk"))
    handover = worker._handover
    worker.shutdown()
    worker.shutdown()
    assert handover.made == ["close"]
    assert worker.model_runner.made == ["shutdown", "shutdown"]


def test_a_run_that_is_right_gives_its_status(rank):
    worker = rank("", EngineError("never"))
    worker.execute_model(None)
    assert worker.extractor_finish() == {"samples": 3}
    assert not rank_error_file(worker._job, 1).exists()
    with pytest.raises(EngineError, match="no extraction is running"):
        worker.extractor_status()
