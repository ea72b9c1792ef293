"""Inputs, implementations and the checker for gather_rows, shared by its tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from extractor.gather_native import NativeGather
from extractor.kernels.gather_ref import gather_rows_ref
from extractor.native import NativeLibrary, NativeMissingError, load

Gather = Callable[..., None]
SOURCES = (torch.bfloat16, torch.float16, torch.float32)
STORED = (torch.float16, torch.bfloat16)
PAIRS = ("alone", "rounded", "fp32")

# Values around everything that conversion can get wrong; each fp32, rounded to the source's dtype by the caller.
EDGE_VALUES = (
    0.0, -0.0, 1.0, -1.5, 2.0**-24, 2.0**-25, 1.5 * 2.0**-24, 2.0**-14, 6.1e-5, 65472.0, 65504.0, 65504.004, 65519.99,
    65520.0, -65504.0, -65505.0, 65536.0, -1e30, 3.3895314e38, 3.39e38, 3.4028235e38, float("inf"), float("-inf"),
    float("nan"), 1e-45, 1.1754942e-38, 8.1734e-39, -1.7192e-37,
)  # fmt: skip


def native_library(name: str) -> NativeLibrary:
    """The library `cpu` or `cuda`. Without it the test is skipped, or fails where EXTRACTOR_NATIVE=require and the
    machine could have built it."""
    try:
        return load(name)
    except NativeMissingError as reason:
        if os.environ.get("EXTRACTOR_NATIVE") == "require" and (name == "cpu" or shutil.which("nvcc")):
            raise
        pytest.skip(str(reason))


def native_gather(function: str) -> Gather:
    """gather_rows by one exported function of the CPU library."""
    library = native_library("cpu")

    def gather(layers: Sequence[Tensor], rows: Tensor, out: Tensor, counts: Tensor, *rest: object) -> None:
        bound = NativeGather(library, layers, rows, out, counts, *rest)
        bound.gather = library.function(function)
        bound(layers, None, rest[2] if len(rest) > 2 else None)

    return gather


def _numba() -> Gather:
    return pytest.importorskip("extractor.kernels.gather_numba").gather_rows_numba


def _triton() -> Gather:
    pytest.importorskip("triton", reason="Triton has no build for this machine")
    from extractor.kernels.gather import gather_rows_triton

    return gather_rows_triton


IMPLEMENTATIONS: dict[str, Callable[[], Gather]] = {
    "torch": lambda: gather_rows_ref,
    "cpp": lambda: native_gather("extractor_gather_rows"),
    "cpp-portable": lambda: native_gather("extractor_gather_rows_portable"),
    "numba": _numba,
    "triton": _triton,
}


@pytest.fixture(params=IMPLEMENTATIONS)
def gather(request: pytest.FixtureRequest) -> Gather:
    """Each implementation that runs on this machine, with the signature of gather_rows_ref."""
    return IMPLEMENTATIONS[request.param]()


def states(tokens: int, hidden: int, dtype: torch.dtype, seed: int, wide: int = 0) -> Tensor:
    """[tokens, hidden] of `dtype`, cut from a tensor `wide` columns wider: normal values, one in eight an edge."""
    random = torch.Generator().manual_seed(seed)
    value = torch.randn(tokens, hidden + wide, generator=random) * 20
    edges = torch.tensor(EDGE_VALUES)[torch.randint(len(EDGE_VALUES), value.shape, generator=random)]
    chosen = torch.rand(value.shape, generator=random) < 0.125
    return value.where(~chosen, edges).to(dtype)[:, wide // 2 : wide // 2 + hidden]


@dataclass(slots=True)
class Case:
    """One call: its inputs, and results that hold something before."""

    layers: list[Tensor]
    rows: Tensor
    stored: torch.dtype = torch.float16
    owners: Tensor | None = None
    num_rows: Tensor | None = None
    residuals: list[Tensor] | None = None
    sum_in_fp32: bool = False
    samples: int = 1
    out: Tensor = field(init=False)
    counts: Tensor = field(init=False)

    def run(self, gather: Gather) -> None:
        """Results of `gather` in `out` and `counts`; rows not wanted keep 7.0, counts start at 1000."""
        shape = (len(self.layers), 4) if self.owners is None else (self.samples, len(self.layers), 4)
        device = self.rows.device
        self.out = torch.full(
            (self.rows.numel(), len(self.layers), self.layers[0].shape[1]), 7.0, dtype=self.stored, device=device
        )
        self.counts = torch.full(shape, 1000, device=device)
        gather(
            self.layers, self.rows, self.out, self.counts, self.owners, self.num_rows, self.residuals, self.sum_in_fp32
        )

    def check(self, gather: Gather) -> None:
        """Fail where `gather` differs from the definition, with the first coordinate and both bit patterns."""
        self.run(gather_rows_ref)
        expected, found = self.out.clone(), self.counts.clone()
        self.run(gather)
        assert_same_bits(self.out, expected, "out")
        assert_same_bits(self.counts, found, "counts")


def make_case(
    source: torch.dtype, stored: torch.dtype, pair: str, *, tokens: int = 9, hidden: int = 131, rows: int = 13,
    layers: int = 3, samples: int = 0, seed: int = 0, wide: int = 7,
) -> Case:  # fmt: skip
    """Random states with edge values, random rows with repeats; `samples` > 0 gives random owners."""
    random = torch.Generator().manual_seed(seed)
    return Case(
        layers=[states(tokens, hidden, source, seed * 100 + i, wide) for i in range(layers)],
        rows=torch.randint(tokens, (rows,), generator=random).int(),
        stored=stored,
        owners=torch.randint(samples, (rows,), generator=random).int() if samples else None,
        residuals=None
        if pair == "alone"
        else [states(tokens, hidden, source, seed * 100 + 50 + i, wide) for i in range(layers)],
        sum_in_fp32=pair == "fp32",
        samples=samples,
    )


def assert_same_bits(got: Tensor, expected: Tensor, what: str) -> None:
    """Fail with the first differing coordinate and both bit patterns."""
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    integer = {2: torch.int16, 8: torch.int64}[got.element_size()]
    a, b = got.cpu().view(integer), expected.cpu().view(integer)
    differing = (a != b).nonzero()
    if differing.numel():
        at = tuple(differing[0].tolist())
        mask = (1 << 8 * got.element_size()) - 1
        raise AssertionError(
            f"{what}{list(at)}: got {int(a[at]) & mask:#x}, expected {int(b[at]) & mask:#x} ({len(differing)} differ)"
        )
