"""The definition of gather_rows against values written down by hand and against plain torch."""

from __future__ import annotations

import struct

import pytest
import torch
from gather_cases import assert_same_bits, states

from extractor import ops
from extractor.errors import UsageError
from extractor.kernels.gather_ref import gather_rows_ref


def bits(value: float) -> int:
    return struct.unpack("<i", struct.pack("<f", value))[0]


def gather(values: list[float], source: torch.dtype, stored: torch.dtype) -> tuple[list[int], list[int]]:
    """The stored 16-bit patterns and the counts of one row."""
    layer = torch.tensor([values]).to(source)
    out = torch.zeros(1, 1, len(values), dtype=stored)
    counts = torch.zeros(1, 4, dtype=torch.int64)
    ops.gather_rows([layer], torch.zeros(1, dtype=torch.int32), out, counts)
    return [v & 0xFFFF for v in out.view(torch.int16).flatten().tolist()], counts[0].tolist()


def test_fp32_to_fp16_saturates_before_rounding():
    stored, counts = gather(
        [65504.0, 65504.004, -65519.99, 1e9, 2.0**-25, 1.5 * 2.0**-24], torch.float32, torch.float16
    )
    assert stored == [0x7BFF, 0x7BFF, 0xFBFF, 0x7BFF, 0x0000, 0x0002]
    assert counts == [3, 0, 0, bits(1e9)]


def test_inf_and_nan_are_kept_and_counted_apart():
    inf, nan = float("inf"), float("nan")
    stored, counts = gather([inf, -inf, nan, 3.0], torch.bfloat16, torch.float16)
    assert stored == [0x7C00, 0xFC00, 0x7E00, 0x4200]
    assert counts == [0, 2, 1, bits(3.0)]


def test_bf16_is_kept_bit_for_bit_and_fp32_saturates_at_the_largest_bf16():
    nan_with_payload = torch.tensor([[0x7F81, -1, 0x7F80, 0x7F7F]], dtype=torch.int16).view(torch.bfloat16)
    out = torch.zeros(1, 1, 4, dtype=torch.bfloat16)
    counts = torch.zeros(1, 4, dtype=torch.int64)
    ops.gather_rows([nan_with_payload], torch.zeros(1, dtype=torch.int32), out, counts)
    assert_same_bits(out[0], nan_with_payload, "out")
    assert counts.tolist() == [[0, 1, 2, 0x7F7F0000]]
    stored, found = gather([3.3895314e38, 3.3895316e38, -3.4e38], torch.float32, torch.bfloat16)
    assert stored == [0x7F7F, 0x7F7F, 0xFF7F]
    assert found == [2, 0, 0, bits(3.4e38)]


def test_counts_add_up_and_the_maximum_merges():
    layers = [torch.tensor([[70000.0], [2.0]]), torch.tensor([[float("nan")], [5.0]])]
    out = torch.zeros(3, 2, 1, dtype=torch.float16)
    counts = torch.tensor([[1, 1, 1, bits(1e6)], [0, 0, 0, 0]])
    ops.gather_rows(layers, torch.tensor([0, 1, 0], dtype=torch.int32), out, counts)
    assert counts.tolist() == [[3, 1, 1, bits(1e6)], [0, 0, 2, bits(5.0)]]


def test_owners_give_each_sample_its_own_counts():
    layer = torch.tensor([[70000.0, float("inf")], [2.0, -3.0], [float("nan"), 1.0]])
    out = torch.zeros(4, 1, 2, dtype=torch.float16)
    counts = torch.zeros(3, 1, 4, dtype=torch.int64)
    rows, owners = torch.tensor([0, 1, 2, 0]).int(), torch.tensor([2, 0, 0, 2]).int()
    ops.gather_rows([layer], rows, out, counts, owners)
    assert counts[:, 0].tolist() == [[0, 0, 1, bits(3.0)], [0, 0, 0, 0], [2, 2, 0, bits(70000.0)]]


def test_only_the_first_num_rows_are_touched():
    out = torch.full((3, 1, 1), 9.0, dtype=torch.float16)
    counts = torch.zeros(1, 4, dtype=torch.int64)
    rows = torch.tensor([1, 0, -1], dtype=torch.int32)  # the padding row holds rubbish, as in a replayed graph
    ops.gather_rows([torch.tensor([[70000.0], [2.0]])], rows, out, counts, num_rows=torch.tensor([1]).int())
    assert out.flatten().tolist() == [2.0, 9.0, 9.0]
    assert counts.tolist() == [[0, 0, 0, bits(2.0)]]


@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16, torch.float32])
def test_pairs_equal_the_gathered_sum(source):
    hidden, residual = states(7, 33, source, 0), states(7, 33, source, 1)
    rows = torch.tensor([6, 0, 3, 3], dtype=torch.int32)
    for in_fp32, total in ((False, hidden + residual), (True, hidden.float() + residual.float())):
        out, expected = torch.zeros(2, 4, 1, 33, dtype=torch.float16)
        counts, found = torch.zeros(2, 1, 4, dtype=torch.int64)
        ops.gather_rows([hidden], rows, out, counts, residuals=[residual], sum_in_fp32=in_fp32)
        ops.gather_rows([total.float()], rows, expected, found)
        assert_same_bits(out, expected, "out")
        assert_same_bits(counts, found, "counts")


def test_a_row_outside_is_nan_in_the_definition_and_an_error_in_the_operation():
    layer = torch.ones(2, 3)
    for row in (-1, 2):
        out = torch.zeros(1, 1, 3, dtype=torch.float16)
        counts = torch.zeros(1, 4, dtype=torch.int64)
        rows = torch.tensor([row], dtype=torch.int32)
        with pytest.raises(UsageError, match=rf"rows\[0\] is {row}; 0 to 1"):
            ops.gather_rows([layer], rows, out, counts)
        assert out.count_nonzero() == 0
        gather_rows_ref([layer], rows, out, counts)
        assert counts.tolist() == [[0, 0, 3, 0]]
        assert out.isnan().all()


def arguments() -> dict[str, object]:
    return {
        "layers": [torch.zeros(4, 8), torch.zeros(4, 8)],
        "rows": torch.zeros(3, dtype=torch.int32),
        "out": torch.zeros(3, 2, 8, dtype=torch.float16),
        "counts": torch.zeros(2, 4, dtype=torch.int64),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": []}, "holds 0 tensors"),
        ({"layers": [torch.zeros(4, 8), torch.zeros(4, 9)]}, r"layers\[1\] is torch.float32 \(4, 9\)"),
        ({"layers": [torch.zeros(4, 8), torch.zeros(4, 8).half()]}, r"layers\[1\] is torch.float16"),
        ({"layers": [torch.zeros(8, 4).T] * 2}, r"strides \(1, 4\)"),
        ({"layers": [torch.zeros(4, 8, dtype=torch.float64)] * 2}, "torch.float64"),
        ({"rows": torch.zeros(3, dtype=torch.int64)}, "rows is contiguous torch.int64"),
        ({"out": torch.zeros(3, 2, 8)}, "out is contiguous torch.float32"),
        ({"out": torch.zeros(3, 8, 2, dtype=torch.float16).mT}, "out is non-contiguous"),
        ({"counts": torch.zeros(2, 3, dtype=torch.int64)}, r"counts .*\(2, 3\); expected .*\(2, 4\)"),
        ({"owners": torch.zeros(3, dtype=torch.int32)}, r"counts .*\(2, 4\)"),
        ({"num_rows": torch.zeros(1)}, "num_rows is contiguous torch.float32"),
        ({"residuals": [torch.zeros(4, 8)]}, "holds 1 tensors for 2 layers"),
        ({"rows": torch.zeros(3, dtype=torch.int32, device="meta")}, "rows is on meta"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    with pytest.raises(UsageError, match=message):
        ops.gather_rows(**{**arguments(), **change})


def test_no_rows_is_no_work():
    counts = torch.zeros(2, 4, dtype=torch.int64)
    empty = {"rows": torch.zeros(0, dtype=torch.int32), "out": torch.zeros(0, 2, 8, dtype=torch.float16)}
    ops.gather_rows(**{**arguments(), **empty, "counts": counts})
    assert counts.count_nonzero() == 0
