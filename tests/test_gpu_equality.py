"""How bench/gpu_check.py compares a kernel with the definition: it accepts a right one and rejects a wrong one."""

from __future__ import annotations

import itertools

import pytest
import torch
from gather_cases import IMPLEMENTATIONS, native_library
from gpu_doubles import after, broken, never

from extractor.bench import gpu_equality, gpu_order
from extractor.bench.gpu_report import Check

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
CPU = torch.device("cpu")


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
