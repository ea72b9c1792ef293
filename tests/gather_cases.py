"""Inputs and the checker for gather_rows, shared by the tests of every implementation."""

from __future__ import annotations

import torch
from torch import Tensor

# Values around everything that conversion can get wrong; each fp32, rounded to the source's dtype by the caller.
EDGE_VALUES = (
    0.0, -0.0, 1.0, -1.5, 2.0**-24, 2.0**-25, 1.5 * 2.0**-24, 2.0**-14, 6.1e-5, 65472.0, 65504.0, 65504.004, 65519.99,
    65520.0, -65504.0, -65505.0, 65536.0, -1e30, 3.3895314e38, 3.39e38, 3.4028235e38, float("inf"), float("-inf"),
    float("nan"), 1e-45, 1.1754942e-38,
)  # fmt: skip


def states(tokens: int, hidden: int, dtype: torch.dtype, seed: int, wide: int = 0) -> Tensor:
    """[tokens, hidden] of `dtype`, cut from a tensor `wide` columns wider: normal values, one in eight an edge."""
    random = torch.Generator().manual_seed(seed)
    value = torch.randn(tokens, hidden + wide, generator=random) * 20
    edges = torch.tensor(EDGE_VALUES)[torch.randint(len(EDGE_VALUES), value.shape, generator=random)]
    chosen = torch.rand(value.shape, generator=random) < 0.125
    return value.where(~chosen, edges).to(dtype)[:, wide // 2 : wide // 2 + hidden]


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
