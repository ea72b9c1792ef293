"""bench/gpu_check.py without a GPU: what it concludes, writes, leaves out and says, with stand-ins for the device."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
import torch
from fake_streams import FakeStreams
from gather_cases import IMPLEMENTATIONS, native_library
from gpu_standin import FakeGpu

from extractor.bench import (
    gpu_build,
    gpu_capture,
    gpu_check,
    gpu_equality,
    gpu_measure,
    gpu_order,
    gpu_parts,
    gpu_ring,
    gpu_speed,
)
from extractor.bench.gpu_parts import PARTS, Part, Run
from extractor.bench.gpu_report import Check, Measure, Report, table, tried
from extractor.bench.gpu_targets import TARGETS, verdict
from extractor.bench.gpu_timing import Work
from extractor.engines import job
from extractor.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
CPU = torch.device("cpu")


def always() -> bool:
    return True


def never() -> bool:
    return False


def after(calls: int):
    """Over once it has been asked `calls` times."""
    asked = itertools.count()
    return lambda: next(asked) >= calls


def broken(*arguments: object, **rest: object) -> None:
    raise RuntimeError("PassManager::run failed\nand 200 lines of what the compiler saw")


def off_by_one(layers, rows, *rest, **named):
    IMPLEMENTATIONS["torch"]()(layers, (rows + 1) % layers[0].shape[0], *rest, **named)


def by_name(name: str):
    gather = IMPLEMENTATIONS[name]()
    return lambda *a, **k: gather(*a, k["owners"], k["num_rows"], k["residuals"], k["sum_in_fp32"])


@pytest.fixture
def few_cases(monkeypatch):
    monkeypatch.setattr(gpu_equality, "SIZES", ((264, 8, 0), (129, 0, 0)))
    monkeypatch.setattr(gpu_equality, "NUM_ALIGNED", 1)
    monkeypatch.setattr(gpu_equality, "USUAL_SIZES", ((264, 8, 3),))
    monkeypatch.setattr(gpu_equality, "PAIRS", ("alone", "rounded"))


CASES = 3 * 2 * 2 * 2 + 2


class TestEquality:
    def test_accepts_the_kernels(self, few_cases):
        """The Triton kernel stands in for a GPU's: like it, it stores rows outside as NaN."""
        found = gpu_equality.compare("Triton", by_name("triton"), CPU, 3, never)
        assert found == Check("Triton", cases=CASES)

    def test_rejects_a_wrong_kernel(self, few_cases):
        found = gpu_equality.compare("wrong", off_by_one, CPU, 3, never)
        assert (found.cases, len(found.differ)) == (CASES, CASES)

    def test_gives_a_cpu_kernel_no_rows_outside(self, few_cases):
        gather = gpu_equality.by_library(native_library("cpu"))
        assert gpu_equality.compare("C++", gather, CPU, 3, never, inside=True) == Check("C++", cases=CASES)
        assert "rows[" in gpu_equality.compare("C++", gather, CPU, 3, never).failed

    def test_an_implementation_that_cannot_run_is_named_after_its_first_error(self, few_cases):
        found = gpu_equality.compare("Triton", broken, CPU, 3, never)
        assert found.cases == 1
        assert found.is_wrong
        assert (
            found.failed == "in bfloat16 -> float16, alone, H=264 from 0 of 272: RuntimeError: PassManager::run failed"
        )

    def test_what_finds_no_time_is_named(self, few_cases):
        found = gpu_equality.compare("torch", by_name("torch"), CPU, 3, after(4))
        assert (found.cases, found.differ, found.is_wrong) == (4, [], False)
        assert found.left_out.startswith(f"{CASES - 4} cases, from bfloat16 -> bfloat16, alone, H=264")

    def test_each_run_sees_fresh_inputs(self):
        one, two = (next(iter(gpu_equality.cases(torch.Generator().manual_seed(s))))[1] for s in (1, 2))
        assert not torch.equal(one["rows"], two["rows"])

    def test_strides_and_the_first_column_reach_the_device(self):
        value = torch.arange(40).view(4, 10)[:, 3:8]
        moved = gpu_equality.moved(value, CPU)
        assert torch.equal(moved, value)
        assert (moved.stride(), moved.storage_offset()) == ((10, 1), 3)


def test_each_kind_meets_owners_and_alignment_in_few_compilations():
    """Triton compiles once for each of these; the product's dtypes meet every alignment."""
    compiled, met = set(), set()
    for source, stored, pair, (hidden, wide, first), owned in gpu_equality.kinds():
        divisible = (hidden % 16 == 0, (hidden + wide) % 16 == 0, first == 0)
        compiled.add((source, stored, pair, divisible, owned))
        aligned = all(divisible)
        met |= {(source, stored, pair, aligned), (source, owned, aligned), (stored, owned, aligned)}
        met |= {
            (pair, owned, aligned),
            (*gpu_equality.USUAL, divisible) if (source, stored) == gpu_equality.USUAL else (),
        }
    assert len(compiled) <= 42
    sources, stored, pairs = gpu_equality.SOURCES, gpu_equality.STORED, gpu_equality.PAIRS
    assert set(itertools.product(sources, stored, pairs, (True, False))) <= met
    for axis in (sources, stored, pairs):
        assert set(itertools.product(axis, (True, False), (True, False))) <= met
    facts = {(True, True, True), (False, False, True), (True, False, True), (True, True, False)}
    assert {(*gpu_equality.USUAL, fact) for fact in facts} <= met


def test_the_expected_rows_of_a_step():
    states = gpu_order.expected(70)  # the 7th step after the counter started again
    assert states[0, :, 0].tolist() == [6.0, 70.0, 134.0]
    assert states[6].eq(states[0]).all()
    assert states[7:].eq(-1).all()


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


class TestSpeed:
    @pytest.fixture(autouse=True)
    def no_device(self, monkeypatch):
        monkeypatch.setattr(Work, "seconds", lambda work: work.run() or 0.5)
        monkeypatch.setattr(gpu_measure, "running_product", nullcontext)

    def test_rates_alone_and_loaded_and_shares(self):
        rows: list[Measure] = []
        plans = [("copy", lambda: Work(4 * 10**9, lambda: None)), ("gather", lambda: Work(10**9, lambda: None, 10))]
        gpu_measure.measure(plans, rows, never)
        gpu_measure.shares(rows, "copy", "gather")
        assert [(row.alone, row.loaded, row.us_each, row.share) for row in rows] == [
            (8.0, 8.0, 5e5, None), (2.0, 2.0, 5e4, 0.25),
        ]  # fmt: skip

    def test_what_fails_is_named_and_the_others_go_on(self):
        rows: list[Measure] = []
        gpu_measure.measure([("Triton", broken), ("gather", lambda: Work(1, broken)), ("copy", copy)], rows, never)
        gpu_measure.shares(rows, "gather", "copy")
        assert [bool(row.failed) for row in rows] == [True, True, False]
        assert rows[2].loaded is not None
        assert rows[0].result() == "FAILED: RuntimeError: PassManager::run failed"

    def test_what_finds_no_time_is_named(self):
        rows: list[Measure] = []
        gpu_measure.measure([("one", copy), ("two", copy)], rows, after(1))
        assert [(row.alone is None, row.left_out) for row in rows] == [(False, ""), (True, "no time left")]
        gpu_measure.single("three", "us", lambda: 1.0, rows, always)
        gpu_measure.single("four", "us", broken, rows, never)
        gpu_measure.single("five", "us", lambda: 5.0, rows, never)
        assert [row.alone for row in rows[2:]] == [None, None, 5.0]
        assert (rows[2].left_out, bool(rows[3].failed)) == ("no time left", True)


def copy() -> Work:
    return Work(1, lambda: None)


@pytest.mark.parametrize(
    ("what", "value", "share", "expected"),
    [
        ("copy to pinned memory, 1024 MiB", 54.0, None, "met"),
        ("copy to pinned memory, 1024 MiB", 50.0, None, "short"),
        ("copy to pinned memory, 1024 MiB", 44.0, None, "FAIL"),
        ("time added to a decode step", 1.5, None, "met"),
        ("time added to a decode step", 3.0, None, "short"),
        ("time added to a decode step", 6.0, None, "FAIL"),
        ("host time of a step, 32 rows in 32 chunks", 20.0, None, "met"),
        ("host time of a step, 32 rows in 32 chunks", 59.0, None, "short"),
        ("host time of a step, 32 rows in 32 chunks", 61.0, None, "FAIL"),
        ("ring, 8192 rows x 4 x 7168", 10.0, 0.9, "met"),
        ("ring, 8192 rows x 4 x 7168", 50.0, 0.85, "short"),
        ("ring, 8192 rows x 4 x 7168", 50.0, 0.79, "FAIL"),
        ("ring, 8192 rows x 4 x 7168", 50.0, None, ""),
        ("copy to pinned memory, 64 KiB", 1.0, None, ""),
    ],
)
def test_verdicts(what, value, share, expected):
    assert verdict(what, value, share) == expected


def test_every_target_names_something_that_is_measured():
    names = {name for name, _ in (*gpu_speed.plans(None), *gpu_speed.triton_plans(), *gpu_capture.plans(ExitStack()))}
    assert gpu_parts.COPY_CEILING in names
    assert set(TARGETS) <= names | set(gpu_parts.HOST_TIMES) | set(gpu_parts.ADDED_TIMES) | {
        "host time of a bound call"
    }


def test_the_measured_ring_is_a_jobs():
    assert (gpu_capture.SLOT_BYTES, gpu_capture.NUM_SLOTS) == (job._SLOT_BYTES, job._NUM_SLOTS)


def test_the_table_shows_what_is_wrong_and_what_was_not_measured():
    checks = [Check("CUDA = definition", 72, ["a", "b", "c", "d"]), Check("ring: pinned", left_out="no time left")]
    rows = [
        Measure("gather, 8192 rows x 3 x 7168", "GB/s", alone=3456.7, us_each=101.94, share=0.81),
        Measure("device copy, 1 GiB", "GB/s", loaded=1.0),
        Measure("zero-copy", "GB/s", failed="OutOfMemoryError: CUDA out of memory"),
    ]
    text = table(checks, rows).splitlines()
    assert text[1].split() == ["CUDA", "=", "definition", "72", "WRONG", "in", "4:", "a;", "b;", "c"]
    assert text[2].endswith("0  left out: no time left")
    assert text[4].split()[-7:] == ["7168", "3,456.7", "-", "GB/s", "101.9", "81%", "met"]
    assert text[5].split()[-4:] == ["-", "1.0", "GB/s", "-"]
    assert text[6].endswith("FAILED: OutOfMemoryError: CUDA out of memory")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test misses")
def test_without_a_gpu_it_says_so(capsys):
    assert gpu_check.main([]) == 2
    assert "torch finds no CUDA GPU here" in capsys.readouterr().err
