"""Arguments that gather_rows refuses, and the checker of its tests: it must reject kernels that are wrong."""

from __future__ import annotations

import pytest
import torch
from gather_cases import Case, make_case

from extractor import ops
from extractor.errors import UsageError
from extractor.kernels.gather_ref import gather_rows_ref


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
        ({"layers": [torch.zeros(4, 8)] * 97}, "holds 97 tensors; 1 to 96"),
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


@pytest.mark.parametrize("implementation", ["cpp", "numba", "torch"])
@pytest.mark.parametrize(("name", "value"), [("rows", -1), ("rows", 4), ("owners", -1), ("owners", 2)])
def test_a_bad_row_is_named_and_nothing_is_written(monkeypatch, implementation, name, value):
    if implementation == "cpp":
        from gather_cases import native_library

        native_library("cpu")
    monkeypatch.setenv("EXTRACTOR_IMPL", implementation)
    call = {**arguments(), "owners": torch.zeros(3, dtype=torch.int32), "counts": torch.zeros(2, 2, 4).long()}
    call["layers"] = [torch.ones(4, 8)] * 2
    call[name][2] = value
    with pytest.raises(UsageError, match=rf"{name}\[2\] is {value}; 0 to {3 if name == 'rows' else 1} are allowed"):
        ops.gather_rows(**call)
    assert call["out"].count_nonzero() == call["counts"].count_nonzero() == 0
    ops.gather_rows(**call, num_rows=torch.tensor([2], dtype=torch.int32))
    assert call["out"][:2].eq(1).all()


def test_no_rows_is_no_work():
    counts = torch.zeros(2, 4, dtype=torch.int64)
    empty = {"rows": torch.zeros(0, dtype=torch.int32), "out": torch.zeros(0, 2, 8, dtype=torch.float16)}
    ops.gather_rows(**{**arguments(), **empty, "counts": counts})
    assert counts.count_nonzero() == 0


def row_off_by_one(layers, rows, *rest):
    gather_rows_ref(layers, (rows + 1) % layers[0].shape[0], *rest)


def layers_swapped(layers, *rest):
    gather_rows_ref(layers[::-1], *rest)


def untouched(*_):
    pass


def no_saturation(layers, rows, out, counts, *_):
    gather_rows_ref(layers, rows, out, counts)
    out.copy_(torch.stack([layer[rows.long()] for layer in layers], 1).to(out.dtype))


def truncation(layers, rows, out, counts, *_):
    gather_rows_ref([(t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in layers], rows, out, counts.clone())
    gather_rows_ref(layers, rows, out.clone(), counts)


def maximum_after_rounding(layers, rows, out, counts, *_):
    gather_rows_ref(layers, rows, out, counts.clone())
    gather_rows_ref([t.half().float() for t in layers], rows, out.clone(), counts)


def counts_overwritten(layers, rows, out, counts, *_):
    counts.zero_()
    gather_rows_ref(layers, rows, out, counts)


def inf_counted_as_saturated(layers, rows, out, counts, *_):
    gather_rows_ref(layers, rows, out, counts)
    counts[:, 0] += counts[:, 1] - 1000


def padding_written(layers, rows, out, counts, owners, num_rows, *_):
    gather_rows_ref(layers, rows, out, counts.clone())
    gather_rows_ref(layers, rows, out.clone(), counts, None, num_rows)


WRONG = [row_off_by_one, layers_swapped, untouched, no_saturation, truncation, maximum_after_rounding,
         counts_overwritten, inf_counted_as_saturated, padding_written]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_the_checker_rejects(wrong):
    case: Case = make_case(torch.float32, torch.float16, "alone")
    case.num_rows = torch.tensor([10], dtype=torch.int32)
    case.check(gather_rows_ref)
    with pytest.raises(AssertionError, match=r"(out|counts)\[.*: got 0x.*, expected 0x"):
        case.check(wrong)
