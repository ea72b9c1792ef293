"""Every implementation of gather_rows: values written down by hand, and equality with the definition bit for bit."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from gather_cases import PAIRS, SOURCES, STORED, Case, assert_same_bits, gather, make_case, states
from hypothesis import given, settings
from hypothesis import strategies as st

from extractor.kernels.gather_ref import convert_ref

__all__ = ["gather"]  # the fixture
# Triton's interpreter computes with numpy, which warns about the inf and NaN among the inputs.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


def bits(value: float) -> int:
    return struct.unpack("<i", struct.pack("<f", value))[0]


def patterns(case: Case) -> list[int]:
    return [value & 0xFFFF for value in case.out.view(torch.int16).flatten().tolist()]


def one_row(values: list[float], source: torch.dtype, stored: torch.dtype) -> Case:
    return Case([torch.tensor([values]).to(source)], torch.zeros(1, dtype=torch.int32), stored)


def test_fp32_to_fp16_saturates_before_rounding(gather):
    case = one_row([65504.0, 65504.004, -65519.99, 1e9, 2.0**-25, 1.5 * 2.0**-24], torch.float32, torch.float16)
    case.run(gather)
    assert patterns(case) == [0x7BFF, 0x7BFF, 0xFBFF, 0x7BFF, 0x0000, 0x0002]
    assert case.counts.tolist() == [[1003, 1000, 1000, bits(1e9)]]


def test_inf_and_nan_are_kept_and_counted_apart(gather):
    inf, nan = float("inf"), float("nan")
    case = one_row([inf, -inf, nan, 3.0], torch.bfloat16, torch.float16)
    case.run(gather)
    assert patterns(case) == [0x7C00, 0xFC00, 0x7E00, 0x4200]
    assert case.counts.tolist() == [[1000, 1002, 1001, bits(3.0)]]


def test_bf16_is_kept_bit_for_bit(gather):
    values = torch.tensor([[0x7F81, -1, 0x7F80, 0x7F7F]], dtype=torch.int16).view(torch.bfloat16)  # NaNs with payloads
    case = Case([values], torch.zeros(1, dtype=torch.int32), torch.bfloat16)
    case.run(gather)
    assert patterns(case) == [0x7F81, 0xFFFF, 0x7F80, 0x7F7F]
    assert case.counts.tolist() == [[1000, 1001, 1002, 0x7F7F0000]]


def test_fp32_saturates_at_the_largest_bf16(gather):
    case = one_row([3.3895314e38, 3.3895316e38, -3.4e38], torch.float32, torch.bfloat16)
    case.run(gather)
    assert patterns(case) == [0x7F7F, 0x7F7F, 0xFF7F]
    assert case.counts.tolist() == [[1002, 1000, 1000, bits(3.4e38)]]


def test_owners_give_each_sample_its_own_counts(gather):
    layer = torch.tensor([[70000.0, float("inf")], [2.0, -3.0], [float("nan"), 1.0]])
    rows, owners = torch.tensor([0, 1, 2, 0]).int(), torch.tensor([2, 0, 0, 2]).int()
    case = Case([layer], rows, owners=owners, samples=3)
    case.run(gather)
    expected = [[1000, 1000, 1001, bits(3.0)], [1000] * 4, [1002, 1002, 1000, bits(70000.0)]]
    assert case.counts[:, 0].tolist() == expected


def test_the_maximum_merges_and_keeps_an_older_larger_one(gather):
    case = one_row([3.0], torch.bfloat16, torch.float16)
    case.run(lambda *arguments: (arguments[3].fill_(bits(1e6)), gather(*arguments)))
    assert case.counts[0, 3] == bits(1e6)


def test_rows_beyond_num_rows_are_not_read_written_or_counted(gather):
    rows = torch.tensor([1, 0, -1, 99], dtype=torch.int32)  # padding rows hold rubbish, as in a replayed graph
    case = Case([torch.tensor([[70000.0], [2.0]])], rows, num_rows=torch.tensor([1], dtype=torch.int32))
    case.run(gather)
    assert case.out.flatten().tolist() == [2.0, 7.0, 7.0, 7.0]
    assert case.counts.tolist() == [[1000, 1000, 1000, bits(2.0)]]


@pytest.mark.parametrize("num_rows", [-3, 0, 13, 14])
def test_any_num_rows_is_safe(gather, num_rows):
    case = make_case(torch.bfloat16, torch.float16, "alone", samples=2)
    case.num_rows = torch.tensor([num_rows], dtype=torch.int32)
    case.check(gather)


@pytest.mark.parametrize("samples", [0, 4])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_equals_the_definition(gather, source, stored, pair, samples):
    make_case(source, stored, pair, samples=samples).check(gather)


@pytest.mark.parametrize("hidden", [1, 8, 15, 16, 17, 129, 151, 512])
def test_any_hidden_size(gather, hidden):
    make_case(torch.bfloat16, torch.float16, "alone", hidden=hidden, wide=0, rows=3, layers=2).check(gather)
    make_case(torch.float32, torch.float16, "rounded", hidden=hidden, wide=3, rows=3, layers=1).check(gather)


@given(
    source=st.sampled_from(SOURCES), stored=st.sampled_from(STORED), pair=st.sampled_from(PAIRS),
    tokens=st.integers(1, 6), hidden=st.integers(1, 70), rows=st.integers(1, 9), layers=st.integers(1, 4),
    samples=st.integers(0, 3), seed=st.integers(0, 2**20), wide=st.integers(0, 9),
)  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_compiled_code_equals_the_definition_on_any_shape(**shape):
    from gather_cases import native_gather

    case = make_case(shape.pop("source"), shape.pop("stored"), shape.pop("pair"), **shape)
    for function in ("extractor_gather_rows", "extractor_gather_rows_portable"):
        case.check(native_gather(function))


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16], ids=str)
def test_all_16_bit_patterns(gather, source, stored):
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(source).reshape(16, 4096)
    Case([every], torch.arange(16).int(), stored).check(gather)


def fp16_boundaries() -> torch.Tensor:
    """Each fp16 value, the midpoint to the next, and the fp32 neighbours of both: where rounding changes its mind."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    points = np.concatenate([halves, (halves + np.append(halves[1:], np.float32(65536))) / 2])
    around = np.concatenate([points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(1e9))])
    return torch.from_numpy(np.concatenate([around, -around]))


def test_all_fp16_boundaries(gather):
    values = fp16_boundaries()
    values = torch.cat([values, values[: -values.numel() % 4096]]).reshape(-1, 4096)
    Case([values], torch.arange(values.shape[0]).int()).check(gather)


def test_the_definition_rounds_as_numpy_does():
    """An opinion from outside: numpy's own fp32 -> fp16, on every value that does not saturate."""
    values = fp16_boundaries()
    values = values[values.abs() <= 65504.0]
    with np.errstate(under="ignore"):
        expected = torch.from_numpy(values.numpy().astype(np.float16))
    assert_same_bits(convert_ref(values, torch.float16), expected, "fp16")


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_pairs_equal_the_gathered_sum(gather, source):
    hidden, residual = states(7, 33, source, 0), states(7, 33, source, 1)
    rows = torch.tensor([6, 0, 3, 3], dtype=torch.int32)
    for in_fp32, total in ((False, hidden + residual), (True, hidden.float() + residual.float())):
        pair = Case([hidden], rows, residuals=[residual], sum_in_fp32=in_fp32)
        alone = Case([total.float()], rows)
        pair.run(gather)
        alone.run(gather)
        assert_same_bits(pair.out, alone.out, "out")
        assert_same_bits(pair.counts, alone.counts, "counts")


@pytest.mark.parametrize("name", ["torch", "triton"])
@pytest.mark.parametrize("stored", STORED, ids=str)
def test_where_nothing_can_be_raised_a_bad_row_is_nan(name, stored):
    """What a GPU does: a row outside the tokens, or an owner outside the samples, never becomes another row."""
    from gather_cases import IMPLEMENTATIONS

    case = make_case(torch.bfloat16, stored, "alone", samples=2)
    case.rows[[0, 5]] = torch.tensor([-1, 9], dtype=torch.int32)
    case.owners[[1, 2]] = torch.tensor([-1, 2], dtype=torch.int32)
    case.check(IMPLEMENTATIONS[name]())
    assert case.out[[0, 1, 2, 5]].isnan().all()
    assert case.counts[:, :, 2].sum() >= 2 * 3 * 131  # the rows without an owner are stored as NaN, counted nowhere
