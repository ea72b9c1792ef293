"""bench/gpu_check.py without a GPU: its arguments, its reference, its report, and what it says where it can't run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from gather_cases import IMPLEMENTATIONS

BENCH = Path(__file__).resolve().parents[1] / "bench"
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


@pytest.fixture(scope="module")
def gpu_check() -> ModuleType:
    before = list(sys.path)
    sys.path.insert(0, str(BENCH))
    yield importlib.import_module("gpu_check")
    sys.path[:] = before


def off_by_one(layers, rows, *rest, **named):
    IMPLEMENTATIONS["torch"]()(layers, (rows + 1) % layers[0].shape[0], *rest, **named)


def by_name(name: str):
    gather = IMPLEMENTATIONS[name]()
    return lambda *a, **k: gather(*a, k["owners"], k["num_rows"], k["residuals"], k["sum_in_fp32"])


def test_equality_accepts_the_kernels_and_rejects_a_wrong_one(gpu_check, monkeypatch):
    """The Triton kernel stands in for a GPU's: like it, it stores rows outside as NaN."""
    equality = gpu_check.gpu_equality
    monkeypatch.setattr(equality, "SIZES", ((129, 0), (264, 8)))
    monkeypatch.setattr(equality, "PAIRS", ("alone", "rounded"))
    found = equality.check({"Triton": by_name("triton"), "wrong": off_by_one}, torch.device("cpu"), seed=3)
    assert found["Triton"] == {"cases": 3 * 2 * 2 * 2, "differ": []}
    assert len(found["wrong"]["differ"]) == found["wrong"]["cases"]


def test_each_run_sees_fresh_inputs(gpu_check):
    one, two = (next(iter(gpu_check.gpu_equality.cases(torch.Generator().manual_seed(s))))[1] for s in (1, 2))
    assert not torch.equal(one["rows"], two["rows"])


def test_the_expected_rows_of_a_step(gpu_check):
    states = gpu_check.gpu_order.expected(70)  # the 7th step after the counter started again
    assert states[0, :, 0].tolist() == [6.0, 70.0, 134.0]
    assert states[6].eq(states[0]).all()
    assert states[7:].eq(-1).all()


def test_arguments(gpu_check):
    options = gpu_check.parse(["--out", "x.json", "--only", "equality", "--seed", "7"])
    assert (options.out, options.only, options.seed, options.seconds) == (Path("x.json"), "equality", 7, 240.0)
    with pytest.raises(SystemExit):
        gpu_check.parse(["--only", "nothing"])


@pytest.mark.parametrize(
    ("what", "unit", "value", "expected"),
    [
        ("copy to pinned memory, 1024 MiB", "GB/s", 54.0, "met"),
        ("copy to pinned memory, 1024 MiB", "GB/s", 50.0, "short"),
        ("copy to pinned memory, 1024 MiB", "GB/s", 44.0, "FAIL"),
        ("time added to a decode step", "%", 1.5, "met"),
        ("time added to a decode step", "%", 3.0, "short"),
        ("time added to a decode step", "%", 6.0, "FAIL"),
        ("copy to pinned memory, 64 KiB", "GB/s", 1.0, ""),
    ],
)
def test_verdicts(gpu_check, what, unit, value, expected):
    assert gpu_check.verdict({"what": what, "unit": unit, "idle": value}) == expected


def test_every_target_names_something_that_is_measured(gpu_check):
    names = {"copy to pinned memory, 1024 MiB", "host time of a bound call"}
    names |= {f"gather, {rows} rows x 3 x {hidden}" for rows in gpu_check.ROWS for hidden in gpu_check.HIDDEN}
    names |= {f"gather + copy to the host, {rows} rows x 3 x 7168" for rows in (32, 1024)}
    names |= {"time added to a prefill step", "time added to a decode step"}
    assert {name for name, *_ in gpu_check.TARGETS} <= names
    assert gpu_check.speed.size(1 << 30) == "1024 MiB"


def test_the_table_shows_what_is_wrong_and_what_was_not_measured(gpu_check):
    checks = [{"what": "CUDA = definition", "cases": 72, "differ": ["a", "b", "c", "d"]}]
    rows = [
        {"what": "gather, 8192 rows x 3 x 7168", "unit": "GB/s", "idle": 3456.7, "idle_us_each": 101.94,
         "loaded": None, "share_of_device_copy": 0.81},
        {"what": "device copy, 1 GiB", "unit": "GB/s", "idle": None, "loaded": 1.0},
    ]  # fmt: skip
    text = gpu_check.table(checks, rows).splitlines()
    assert text[1].split() == ["CUDA", "=", "definition", "72", "WRONG", "in", "4:", "a,", "b,", "c"]
    assert text[4].split()[-7:] == ["7168", "3,456.7", "-", "GB/s", "101.9", "81%", "met"]
    assert text[5].split()[-4:] == ["-", "1.0", "GB/s", "-"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test misses")
def test_without_a_gpu_it_says_so(gpu_check, capsys):
    assert gpu_check.main([]) == 2
    assert "torch finds no CUDA GPU here" in capsys.readouterr().err
