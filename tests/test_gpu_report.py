"""What bench/gpu_check.py measures and prints: rates, shares, targets, and what failed or found no time."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext

import pytest
from gpu_doubles import after, always, broken, never

from extractor.bench import gpu_capture, gpu_measure, gpu_parts, gpu_speed
from extractor.bench.gpu_report import Check, Measure, table
from extractor.bench.gpu_targets import TARGETS, verdict
from extractor.bench.gpu_timing import Work


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
