"""The compiled CPU library: millions of hard sums, bound calls, and what happens with a library that does not fit."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from gather_cases import PAIRS, SOURCES, Case, assert_same_bits, native_gather, native_library

from extractor import native, ops
from extractor.errors import UsageError
from extractor.kernels.gather_ref import gather_rows_ref
from extractor.native import NativeLibrary, NativeMissingError


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    native_library("cpu")
    monkeypatch.setenv("EXTRACTOR_IMPL", "cpp")


def random_patterns(shape: tuple[int, ...], dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    """Every bit random: all magnitudes, subnormals, inf and NaN."""
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    limit = 2 ** (8 * dtype.itemsize - 1)
    return torch.randint(-limit, limit, shape, generator=random, dtype=torch.int64).to(integer).view(dtype)


def hard_pairs(dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[192, 4096] hidden and residual: a third random patterns, a third that nearly cancels, a third near 65,504."""
    random = torch.Generator().manual_seed(seed)
    shape = (64, 4096)
    noise = torch.randn(shape, generator=random)
    hidden = [random_patterns(shape, dtype, random), noise * 100, 32752 + noise * 16]
    residual = [
        random_patterns(shape, dtype, random),
        -noise * 100 + noise.roll(1) * 2.0**-8,
        32752 + noise.roll(1) * 16,
    ]
    return torch.cat([t.to(dtype) for t in hidden]), torch.cat([t.to(dtype) for t in residual])


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_millions_of_hard_values(source, pair):
    """0.8M values for each of 9 combinations and both code paths, 14M in all."""
    hidden, residual = hard_pairs(source, 1)
    residuals = None if pair == "alone" else [residual]
    case = Case([hidden], torch.arange(192).int(), residuals=residuals, sum_in_fp32=pair == "fp32")
    case.check(native_gather("extractor_gather_rows"))
    case.check(native_gather("extractor_gather_rows_portable"))
    assert case.counts[0, 0] > 1000 or source == torch.float16  # the limit was really passed


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("function", ["extractor_gather_rows", "extractor_gather_rows_portable"])
def test_flush_to_zero_of_the_process_changes_no_bit(function, pair):
    """A library that sets the processor's flush-to-zero mode must not change stored subnormals, sums or counts."""
    tiny = torch.tensor([[1e-45, 1.1754942e-38, 2.0**-24, 2.0**-133]] * 8).repeat(1, 8)
    residuals = None if pair == "alone" else [tiny * 3]
    case = Case([tiny], torch.arange(8).int(), torch.bfloat16, residuals=residuals, sum_in_fp32=pair == "fp32")
    case.run(gather_rows_ref)
    expected, counts = case.out.clone(), case.counts.clone()
    try:
        assert torch.set_flush_denormal(True)
        case.run(native_gather(function))
        assert torch.tensor([1e-45]).mul(1.0).item() == 0.0  # the mode is still what the process had set
    finally:
        torch.set_flush_denormal(False)
    assert_same_bits(case.out, expected, "out")
    assert_same_bits(case.counts, counts, "counts")


def test_a_bound_call_follows_the_layers_of_each_step():
    """Other addresses, lengths and row strides each step, fewer rows than bound: only the buffers stay."""
    rows, out = torch.zeros(6, dtype=torch.int32), torch.zeros(6, 2, 40, dtype=torch.float16)
    counts = torch.zeros(2, 4, dtype=torch.int64)
    bound = ops.bind_gather([torch.zeros(1, 40, dtype=torch.bfloat16)] * 2, rows, out, counts)
    for step in range(1, 6):
        layers = [torch.randn(step, 40 + 8 * step).bfloat16()[:, :40] for _ in range(2)]
        rows[:step] = torch.randperm(step).int()
        out.fill_(-1)
        bound(layers, step)
        case = Case(layers, rows[:step].clone())
        case.run(gather_rows_ref)
        assert_same_bits(out[:step], case.out, "out")
        assert out[step:].eq(-1).all()


def test_a_bound_call_follows_the_residuals_of_each_step():
    first = [torch.randn(4, 16).bfloat16()], [torch.randn(4, 16).bfloat16()]
    rows, out = torch.arange(4).int(), torch.zeros(4, 1, 16, dtype=torch.float16)
    bound = ops.bind_gather(first[0], rows, out, torch.zeros(1, 4).long(), residuals=first[1])
    hidden, residual = torch.randn(2, 4, 16).bfloat16()
    bound([hidden], None, [residual])
    assert_same_bits(out[:, 0], (hidden + residual).half(), "out")
    with pytest.raises(UsageError, match="0 tensors were given for 1 bound layers"):
        bound([hidden])


@pytest.mark.parametrize(
    ("layers", "count", "message"),
    [
        ([torch.zeros(4, 8)], None, "1 tensors were given for 2"),
        ([torch.zeros(4, 8), torch.zeros(5, 8)], None, r"tensor 1 is torch.float32 \(5, 8\)"),
        ([torch.zeros(4, 7)] * 2, None, r"tensor 0 .*\(4, 7\).*bound is torch.float32 \(4, 8\)"),
        ([torch.zeros(4, 8, dtype=torch.bfloat16)] * 2, None, "tensor 0 is torch.bfloat16"),
        ([torch.zeros(8, 4).T] * 2, None, r"strides \(1, 4\)"),
        ([torch.zeros(4, 8)] * 2, 4, "count is 4; 0 to 3 rows are bound"),
        ([torch.zeros(4, 8)] * 2, -1, "count is -1"),
    ],
)
def test_a_bound_call_refuses_layers_of_another_kind(layers, count, message):
    rows, out = torch.zeros(3, dtype=torch.int32), torch.zeros(3, 2, 8, dtype=torch.float16)
    bound = ops.bind_gather([torch.zeros(4, 8)] * 2, rows, out, torch.zeros(2, 4).long())
    with pytest.raises(UsageError, match=message):
        bound(layers, count)


def test_the_library_refuses_arguments_that_python_would_not_send():
    library = native_library("cpu")
    arguments = native.GatherArgs(source=7, num_layers=1)
    assert library.gather(ctypes.addressof(arguments), None) == 1
    assert "out of range" in library.error(1)


def test_a_library_that_does_not_fit_says_why(tmp_path, monkeypatch):
    with pytest.raises(NativeMissingError, match=r"libextractor_cpu.so was not built \(`python setup.py build_native`"):
        NativeLibrary(tmp_path / "libextractor_cpu.so")
    broken = tmp_path / "libextractor_cuda.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(NativeMissingError, match="libextractor_cuda.so does not load"):
        NativeLibrary(broken)
    monkeypatch.setattr(native, "ABI_VERSION", 99)
    with pytest.raises(NativeMissingError, match=r"ABI version 1 .*speaks version 99 .*build it again"):
        NativeLibrary(Path(native.__file__).with_name("libextractor_cpu.so"))
