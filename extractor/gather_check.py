"""What `gather_rows` accepts: shapes, dtypes and layouts, each refusal naming the tensor and both sides."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from extractor.errors import UsageError
from extractor.native import MAX_LAYERS

SOURCE_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
STORED_DTYPES = (torch.float16, torch.bfloat16)
_INT32_MAX = 2**31 - 1


def check_gather(
    layers: Sequence[Tensor],
    rows: Tensor,
    out: Tensor,
    counts: Tensor,
    owners: Tensor | None = None,
    num_rows: Tensor | None = None,
    residuals: Sequence[Tensor] | None = None,
) -> None:
    """Raise UsageError on the first argument that `gather_rows` can't take. Looks at no element."""
    if not 1 <= len(layers) <= MAX_LAYERS:
        raise UsageError(f"layers holds {len(layers)} tensors; 1 to {MAX_LAYERS} are allowed; gather in several calls")
    _check_sources("layers", layers, layers[0])
    if residuals is not None:
        if len(residuals) != len(layers):
            raise UsageError(f"residuals holds {len(residuals)} tensors for {len(layers)} layers; give one for each")
        _check_sources("residuals", residuals, layers[0])
    shape = (rows.numel(), len(layers), layers[0].shape[1])
    _check("rows", rows, (torch.int32,), (shape[0],))
    _check("out", out, STORED_DTYPES, shape)
    if owners is None:
        _check("counts", counts, (torch.int64,), (len(layers), 4))
    else:
        _check("owners", owners, (torch.int32,), (shape[0],))
        _check("counts", counts, (torch.int64,), (*counts.shape[:1], len(layers), 4))
    if num_rows is not None:
        _check("num_rows", num_rows, (torch.int32,), (1,))
    _check_devices(layers[0].device, rows=rows, out=out, counts=counts, owners=owners, num_rows=num_rows)


def check_rows(rows: Tensor, tokens: int, owners: Tensor | None, samples: int, num_rows: Tensor | None = None) -> None:
    """Raise UsageError when one of the wanted CPU `rows` is outside [0, tokens) or of `owners` outside [0, samples)."""
    wanted = rows.numel() if num_rows is None else max(0, int(num_rows))
    _check_range("rows", rows[:wanted], tokens)
    if owners is not None:
        _check_range("owners", owners[:wanted], samples)


def _check_sources(name: str, tensors: Sequence[Tensor], first: Tensor) -> None:
    if first.dim() != 2 or first.dtype not in SOURCE_DTYPES or first.shape[0] > _INT32_MAX:
        raise UsageError(
            f"layers[0] is {first.dtype} {tuple(first.shape)}; expected [tokens, hidden size] of bfloat16, float16 or "
            "float32; pass the hidden states as the model returns them"
        )
    for place, tensor in enumerate(tensors):
        if tensor.shape != first.shape or tensor.dtype != first.dtype or tensor.device != first.device:
            raise UsageError(
                f"{name}[{place}] is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, layers[0] is "
                f"{first.dtype} {tuple(first.shape)} on {first.device}; all must agree; gather them separately"
            )
        if tensor.stride(1) != 1:
            raise UsageError(
                f"{name}[{place}] has strides {tensor.stride()}; the columns must be contiguous; call .contiguous()"
            )


def _check(name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...]) -> None:
    if tensor.dtype not in dtypes or tuple(tensor.shape) != shape or not tensor.is_contiguous():
        layout = "contiguous" if tensor.is_contiguous() else "non-contiguous"
        raise UsageError(
            f"{name} is {layout} {tensor.dtype} {tuple(tensor.shape)}; expected contiguous "
            f"{' or '.join(str(d) for d in dtypes)} {shape}; allocate it so"
        )


def _check_devices(device: torch.device, **tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != device:
            raise UsageError(f"{name} is on {tensor.device}, layers[0] on {device}; all must be on one; move it there")


def _check_range(name: str, values: Tensor, limit: int) -> None:
    outside = ((values < 0) | (values >= limit)).nonzero()
    if outside.numel():
        place = int(outside[0])
        raise UsageError(
            f"{name}[{place}] is {int(values[place])}; 0 to {limit - 1} are allowed ({outside.shape[0]} such); "
            "leave padding rows out"
        )
