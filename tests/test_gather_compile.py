"""gather_rows inside torch.compile, and at a layer boundary whose tensors the next norm overwrites."""

from __future__ import annotations

import pytest
import torch
from gather_cases import assert_same_bits
from torch import Tensor

from extractor import ops
from extractor.errors import UsageError


def buffers(rows: int, layers: int, hidden: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(rows, layers, hidden, dtype=torch.float16), torch.zeros(layers, 4, dtype=torch.int64)


def test_a_compiled_function_gathers_what_it_computed():
    """One graph, no break: the gather reads a tensor made before it, and the tensor changed after it is another."""
    rows, (out, counts) = torch.tensor([2, 0], dtype=torch.int32), buffers(2, 2, 8)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def model(x: Tensor) -> Tensor:
        first = x * 2
        ops.gather_rows([x, first], rows, out, counts)
        return first.mul_(0)

    x = torch.randn(4, 8).bfloat16()
    assert model(x).count_nonzero() == 0
    assert_same_bits(out, torch.stack([x[[2, 0]], (x * 2)[[2, 0]]], 1).half(), "out")
    assert counts[1, 3] == (x * 2)[[2, 0]].abs().max().float().view(torch.int32)


def test_a_compiled_function_with_a_dynamic_number_of_tokens():
    rows, (out, counts) = torch.zeros(1, dtype=torch.int32), buffers(1, 1, 8)

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def model(x: Tensor) -> Tensor:
        ops.gather_rows([x], rows, out, counts)
        return x + 1

    for tokens in (3, 5, 9):
        x = torch.randn(tokens, 8)
        model(x)
        assert_same_bits(out[:, 0], x[:1].half(), "out")


def test_wrong_arguments_are_named_inside_a_compiled_function_too():
    rows, (out, counts) = torch.zeros(3, dtype=torch.int32), buffers(2, 1, 8)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def model(x: Tensor) -> Tensor:
        ops.gather_rows([x], rows, out, counts)
        return x

    with pytest.raises(UsageError, match=r"out is contiguous torch.float16 \(2, 1, 8\); expected .*\(3, 1, 8\)"):
        model(torch.zeros(4, 8))


def test_the_registration_tells_the_truth():
    """torch's own check: the schema names every argument that is written, and the fake agrees with the real call."""
    out, counts = buffers(2, 1, 8)
    arguments = ([torch.randn(4, 8)], torch.zeros(2, dtype=torch.int32), out, counts)
    torch.library.opcheck(
        torch.ops.hidden_state_extractor.gather_rows.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


def fused_add_rms_norm(hidden: Tensor, residual: Tensor) -> None:
    """What vLLM's CUDA norm does to its inputs: the residual takes the sum, hidden the normalised sum. In place."""
    residual.copy_(hidden + residual)
    hidden.copy_(residual.float() * residual.float().square().mean(-1, keepdim=True).rsqrt())


def test_a_pair_is_right_at_the_boundary_and_garbage_after_the_next_norm():
    """Why pair mode is for the layer boundary only: a pair that is kept for the end of the step is overwritten."""
    hidden, residual = torch.randn(6, 64).bfloat16() * 2, torch.randn(6, 64).bfloat16() * 20
    state = hidden + residual  # what vLLM hands a drafter as the auxiliary hidden state
    rows, (out, counts) = torch.arange(6).int(), buffers(6, 1, 64)
    ops.gather_rows([hidden], rows, out, counts, residuals=[residual])
    assert_same_bits(out[:, 0], state.half(), "out")

    fused_add_rms_norm(hidden, residual)
    late, counts = buffers(6, 1, 64)
    ops.gather_rows([hidden], rows, late, counts, residuals=[residual])
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(late, out, "late")
    # The norm's residual output is the state: a boundary may read that one tensor instead of the pair.
    ops.gather_rows([residual], rows, late, counts)
    assert_same_bits(late, out, "late")


def test_the_sum_in_fp32_is_another_state():
    hidden, residual = torch.randn(6, 64).bfloat16() * 2, torch.randn(6, 64).bfloat16() * 20
    rows, (out, counts) = torch.arange(6).int(), buffers(6, 1, 64)
    ops.gather_rows([hidden], rows, out, counts, residuals=[residual], sum_in_fp32=True)
    assert_same_bits(out[:, 0], (hidden.float() + residual.float()).half(), "out")
    assert (out[:, 0] != (hidden + residual).half()).float().mean() > 0.5  # so the two modes must not be mixed
