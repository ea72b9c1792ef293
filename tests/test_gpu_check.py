"""bench/gpu_check.py without a GPU: what it concludes, writes, leaves out and says, with stand-ins for the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fake_streams import FakeStreams
from gpu_doubles import always, broken, never
from gpu_standin import FakeGpu

from extractor.bench import gpu_build, gpu_check, gpu_parts, gpu_ring
from extractor.bench.gpu_parts import PARTS, Part, Run
from extractor.bench.gpu_report import Report, tried
from extractor.errors import UsageError


def test_arguments():
    options = gpu_check.parse(["--out", "x.json", "--only", "equality", "--seed", "7"])
    assert (options.out, options.only, options.seed, options.seconds) == (Path("x.json"), "equality", 7, 240.0)
    with pytest.raises(SystemExit):
        gpu_check.parse(["--only", "nothing"])
    assert options.seconds + gpu_check.GRACE_SECONDS < 300


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine whose device, library and parts are stand-ins; `run(*parts)` gives (exit code, JSON)."""
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a stand-in")
    monkeypatch.setattr(gpu_build, "library", lambda: None)

    def run(*parts: Part, options: tuple[str, ...] = ()):
        monkeypatch.setattr(gpu_check, "PARTS", parts)
        return gpu_check.main(["--out", str(out), *options]), json.loads(out.read_text())

    run.out = out
    return run


def a_part(name: str, work, half: str = "equality", until: float = 1.0) -> Part:
    return Part(name, half, until, work)


def right(run: Run, over) -> None:
    run.report.checks.append(tried("all is well", lambda: [], over))


class TestRun:
    def test_all_right(self, machine, capsys):
        code, written = machine(a_part("one", right))
        assert code == 0
        assert written["checks"] == [
            {"what": "all is well", "cases": 1, "differ": [], "failed": "", "left_out": ""}
        ]  # fmt: skip
        assert (written["unfinished"], written["failures"], list(written["seconds"])) == (None, [], ["one"])
        assert "all is well" in capsys.readouterr().out

    @pytest.mark.parametrize("wrong", [lambda: ["row 3"], broken], ids=["differs", "cannot run"])
    def test_one_wrong_check_fails_the_run_and_the_others_go_on(self, machine, capsys, wrong):
        def part(run, over):
            run.report.checks.append(tried("Triton = definition", wrong, over))

        code, written = machine(a_part("one", part), a_part("two", right))
        assert code == 1
        assert [check["what"] for check in written["checks"]] == ["Triton = definition", "all is well"]
        said = capsys.readouterr().out
        assert "WRONG in 1: row 3" in said or "FAILED: RuntimeError: PassManager::run failed" in said

    def test_a_part_that_breaks_off_keeps_what_it_found(self, machine, capsys):
        def part(run, over):
            right(run, over)
            broken()

        code, written = machine(a_part("ring", part), a_part("two", right))
        assert code == 1
        assert len(written["checks"]) == 2
        (failure,) = written["failures"]
        assert (failure["what"], failure["failed"]) == ("ring", "RuntimeError: PassManager::run failed")
        assert "200 lines" in failure["traceback"]
        assert "BROKE OFF: ring: RuntimeError" in capsys.readouterr().out

    def test_a_run_that_is_killed_leaves_the_parts_before_and_says_where_it_was(self, machine):
        def killed(run, over):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            machine(a_part("one", right), a_part("two", killed))
        written = json.loads(machine.out.read_text())
        assert ([check["what"] for check in written["checks"]], written["unfinished"]) == (["all is well"], "two")
        assert not list(machine.out.parent.glob("*.partial"))

    def test_results_are_written_after_each_part(self, machine):
        def look(run, over):
            assert json.loads(machine.out.read_text())["checks"][0]["what"] == "all is well"

        assert machine(a_part("one", right), a_part("two", look))[0] == 0

    def test_a_part_begins_nothing_after_its_time(self, machine):
        """A missing result is named and is no error."""
        code, written = machine(a_part("early", right, until=0.0), a_part("late", right))
        assert code == 0
        assert [check["left_out"] for check in written["checks"]] == ["no time left", ""]
        assert machine(a_part("late", right), options=("--seconds", "0"))[1]["checks"][0]["cases"] == 0

    def test_half_a_run(self, machine):
        parts = (a_part("one", right), a_part("two", right, half="speed"))
        assert list(machine(*parts, options=("--only", "speed"))[1]["seconds"]) == ["two"]

    def test_a_hung_device_ends_the_process(self, tmp_path):
        program = (
            "import time; from extractor.bench.gpu_check import ended_after\nwith ended_after(0.5): time.sleep(60)\n"
        )
        root = Path(gpu_check.__file__).resolve().parents[1]
        done = subprocess.run([sys.executable, "-c", program], cwd=root, check=False, capture_output=True, text=True)
        assert done.returncode == 1
        assert "Timeout" in done.stderr


def test_parts_end_in_order_and_within_the_time():
    ends = [part.until for part in PARTS]
    assert ends == sorted(ends)
    assert ends[-1] == 1.0


class TestRing:
    """The part that runs the product's ring, on fake streams."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        sizes = {"LARGE_HIDDEN": 64, "LARGE_SLOT_ROWS": 6, "LARGE_ROWS": 50, "NUM_STEPS": 5}
        for name, value in sizes.items():
            monkeypatch.setattr(gpu_ring, name, value)

    def test_a_right_ring(self, monkeypatch, tmp_path):
        report = Report(tmp_path / "x.json", {})
        gpu_parts.scenarios(FakeGpu(monkeypatch), report, never)
        assert [check.result() for check in report.checks] == ["right"] * len(gpu_ring.SCENARIOS)
        assert not report.is_wrong

    def test_a_wrong_ring_fails_the_run(self, monkeypatch, tmp_path):
        class Wrong(gpu_ring.Capture):
            def step(self, layers, chunks):
                super().step(layers[::-1], chunks)

        report = Report(tmp_path / "x.json", {})
        gpu_parts.scenarios(FakeGpu(monkeypatch, kind=Wrong), report, never)
        assert report.is_wrong
        assert "WRONG in" in report.checks[0].result()

    def test_no_time(self, monkeypatch, tmp_path):
        report = Report(tmp_path / "x.json", {})
        gpu_parts.scenarios(FakeGpu(monkeypatch), report, always)
        assert {check.result() for check in report.checks} == {"left out: no time left"}

    def test_the_ring_is_made_to_gather_by_the_library_under_test(self, monkeypatch):
        monkeypatch.setenv("EXTRACTOR_IMPL", "cpp")
        gpu = FakeGpu(monkeypatch, FakeStreams("engine"))
        with (
            gpu_parts.gathering("cuda"),
            pytest.raises(UsageError, match="EXTRACTOR_IMPL=cuda has nothing for tensors"),
        ):
            gpu_ring.reused(gpu)  # whose tensors are on the CPU
        assert os.environ["EXTRACTOR_IMPL"] == "cpp"


def test_one_gpu_or_no_triton_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    report = Report(tmp_path / "x.json", {})
    run = Run(None, 1, report, has_triton=False)
    gpu_parts.other_device(run, never)
    gpu_parts.triton(run, never)
    gpu_parts.triton_speed(run, never)
    assert {check.left_out for check in report.checks} == {"this machine has one GPU", "Triton is not installed"}
    assert not report.is_wrong


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test misses")
def test_without_a_gpu_it_says_so(capsys):
    assert gpu_check.main([]) == 2
    assert "torch finds no CUDA GPU here" in capsys.readouterr().err
