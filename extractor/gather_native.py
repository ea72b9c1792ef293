"""`gather_rows` by a compiled library: the argument struct is built once, a step changes only its pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from extractor.errors import ExtractorError, UsageError
from extractor.gather_check import check_rows
from extractor.native import BAD_ROW, GatherArgs, NativeLibrary

# The values of Dtype and Pair in csrc/convert.h.
_DTYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
_PAIR_NONE, _PAIR_ROUNDED, _PAIR_FP32 = 0, 1, 2


class NativeGather:
    """A bound call: the buffers that stay (rows, out, counts, owners, num_rows) are held, a step gives the layers."""

    def __init__(
        self,
        library: NativeLibrary,
        layers: Sequence[Tensor],
        rows: Tensor,
        out: Tensor,
        counts: Tensor,
        owners: Tensor | None = None,
        num_rows: Tensor | None = None,
        residuals: Sequence[Tensor] | None = None,
        sum_in_fp32: bool = False,
        *,
        max_blocks: int = 0,
    ) -> None:
        """The arguments of gather_rows, checked by the caller. `max_blocks` caps the CUDA grid; 0 = no cap."""
        self._library = library
        self._held = (rows, out, counts, owners, num_rows)  # the struct holds bare pointers into these
        self._dtype, self._hidden = layers[0].dtype, layers[0].shape[1]
        # Of the rows: `out` may be pinned host memory that a CUDA kernel writes through its device address.
        self._is_cuda, self._device = rows.is_cuda, rows.device
        self._args = GatherArgs(
            rows=rows.data_ptr(),
            owners=None if owners is None else owners.data_ptr(),
            num_rows=None if num_rows is None else num_rows.data_ptr(),
            out=out.data_ptr(),
            counts=counts.data_ptr(),
            max_rows=rows.numel(),
            num_layers=len(layers),
            hidden=self._hidden,
            samples=1 if owners is None else counts.shape[0],
            source=_DTYPES[self._dtype],
            stored=_DTYPES[out.dtype],
            pair=_PAIR_NONE if residuals is None else _PAIR_FP32 if sum_in_fp32 else _PAIR_ROUNDED,
            max_blocks=max_blocks,
        )
        # Attribute access on a ctypes struct makes a new array object each time.
        self._layers, self._layer_strides = self._args.layers, self._args.layer_strides
        self._residuals, self._residual_strides = self._args.residuals, self._args.residual_strides
        self._address = ctypes.addressof(self._args)
        self.gather = library.gather

    def __call__(
        self, layers: Sequence[Tensor], count: int | None = None, residuals: Sequence[Tensor] | None = None
    ) -> None:
        """Gather the first `count` of the bound rows (default: all) from this step's layers, on the current stream.

        Raises UsageError when the layers are not of the bound number, dtype and hidden size, or, on the CPU, when a
        row or owner is out of range.
        """
        args = self._args
        args.max_rows = self._rows_wanted(count)
        args.tokens = layers[0].shape[0]
        self._point(layers, self._layers, self._layer_strides)
        if args.pair != _PAIR_NONE:
            self._point(residuals or (), self._residuals, self._residual_strides)
        code = self._launch() if self._is_cuda else self.gather(self._address, None)
        if code:
            self._fail(code)

    def _launch(self) -> int:
        stream = torch.cuda.current_stream(self._device).cuda_stream
        if torch.cuda.current_device() == self._device.index:
            return int(self.gather(self._address, stream))
        with torch.cuda.device(self._device):  # a kernel goes to the current device, whatever its pointers
            return int(self.gather(self._address, stream))

    def _rows_wanted(self, count: int | None) -> int:
        bound = self._held[0].shape[0]
        if count is None:
            return bound
        if not 0 <= count <= bound:
            raise UsageError(f"count is {count}; 0 to {bound} rows are bound; bind larger buffers")
        return count

    def _point(self, tensors: Sequence[Tensor], pointers: ctypes.Array, strides: ctypes.Array) -> None:  # type: ignore[type-arg]
        if len(tensors) != self._args.num_layers:
            raise UsageError(
                f"{len(tensors)} tensors were given for {self._args.num_layers} bound layers; give one each"
            )
        tokens = self._args.tokens
        for place, tensor in enumerate(tensors):
            rows, hidden = tensor.shape
            strides[place], step = tensor.stride()
            same_kind = tensor.dtype is self._dtype and tensor.is_cuda is self._is_cuda
            if rows != tokens or hidden != self._hidden or step != 1 or not same_kind:
                raise UsageError(
                    f"tensor {place} is {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()} on "
                    f"{tensor.device}; bound is {self._dtype} ({tokens}, {self._hidden}) with contiguous columns on "
                    f"{self._device}; bind again"
                )
            pointers[place] = tensor.data_ptr()

    def _fail(self, code: int) -> None:
        rows, _, counts, owners, num_rows = self._held
        if code == BAD_ROW:
            count = self._args.max_rows
            owned = None if owners is None else owners[:count]
            check_rows(rows[:count], self._args.tokens, owned, counts.shape[0], num_rows)
        raise ExtractorError(f"gather_rows failed in {self._library.path}: {self._library.error(code)} (code {code})")
