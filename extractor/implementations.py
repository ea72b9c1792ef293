"""Which implementation of `gather_rows` runs: chosen once for each kind of device, and said aloud with the reason."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from extractor.errors import UsageError
from extractor.gather_check import check_gather, check_rows
from extractor.gather_native import NativeGather
from extractor.native import NativeMissingError, load

log = logging.getLogger("extractor.ops")

# Best first. `torch` always works; it makes temporaries of the rows' size in fp32.
PREFERENCE = {"cuda": ("cuda", "triton", "torch"), "cpu": ("cpp", "numba", "torch")}
VARIABLE = "EXTRACTOR_IMPL"


class BoundGather(Protocol):
    """A gather whose buffers are bound. Takes this step's layers, how many of the bound rows, this step's residuals."""

    def __call__(
        self, layers: Sequence[Tensor], count: int | None = None, residuals: Sequence[Tensor] | None = None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Implementation:
    """`bind` takes the arguments of gather_rows and returns a call in which only the layers change."""

    name: str
    detail: str
    bind: Callable[..., BoundGather]


def implementation(device_type: str) -> Implementation:
    """The implementation for tensors on `device_type`. EXTRACTOR_IMPL names the one to use (or one for each kind of
    device: `cuda,cpp`); its absence is an error then."""
    return _choose(device_type, os.environ.get(VARIABLE, ""))


@functools.cache
def _choose(device_type: str, wanted: str) -> Implementation:
    known = PREFERENCE.get(device_type)
    if known is None:
        raise UsageError(f"tensors are on {device_type!r}; gather_rows runs on {' and '.join(PREFERENCE)}; move them")
    names = _requested(wanted, device_type) or known
    missing = []
    for name in names:
        try:
            chosen = _LOADERS[name]()
        except NativeMissingError as reason:
            missing.append(f"{name}: {reason}")
            continue
        level = logging.WARNING if missing else logging.INFO  # a warning is seen, on a rank too
        log.log(level, "gather_rows on %s: %s (%s)%s", device_type, name, chosen.detail, _because(missing))
        return chosen
    raise UsageError(f"{VARIABLE}={wanted}, but {'; '.join(missing)}; unset it, or provide what is missing")


def _requested(wanted: str, device_type: str) -> tuple[str, ...]:
    """The names in EXTRACTOR_IMPL that fit the device, or nothing when it is unset."""
    names = tuple(name.strip() for name in wanted.split(",") if name.strip())
    unknown = [name for name in names if name not in _LOADERS]
    if unknown:
        raise UsageError(f"{VARIABLE} holds {unknown[0]!r}; allowed are {', '.join(sorted(_LOADERS))}")
    fitting = tuple(name for name in names if name in PREFERENCE[device_type])
    if names and not fitting:
        raise UsageError(
            f"{VARIABLE}={wanted} has nothing for tensors on the {device_type}; allowed there are "
            f"{', '.join(PREFERENCE[device_type])}; add one after a comma"
        )
    return fitting


def _because(missing: Sequence[str]) -> str:
    return f"; not {'; not '.join(missing)}" if missing else ""


def _cuda() -> Implementation:
    library = load("cuda")
    if library.usable_devices() == 0:
        raise NativeMissingError("libextractor_cuda.so finds no device of compute capability 8.0, or too old a driver")
    return Implementation("cuda", "libextractor_cuda.so", functools.partial(NativeGather, library))


def _cpp() -> Implementation:
    library = load("cpu")
    return Implementation("cpp", f"libextractor_cpu.so, {library.path}", functools.partial(NativeGather, library))


def _triton() -> Implementation:
    _need("triton")
    from extractor.kernels.gather import gather_rows_triton

    return Implementation("triton", "compiled on first use", functools.partial(_bind, gather_rows_triton))


def _numba() -> Implementation:
    _need("numba")
    from extractor.kernels.gather_numba import gather_rows_numba

    return Implementation("numba", "compiled on first use", functools.partial(_bind, gather_rows_numba))


def _torch() -> Implementation:
    from extractor.kernels.gather_ref import gather_rows_ref

    return Implementation("torch", "the reference", functools.partial(_bind, gather_rows_ref))


def _need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise NativeMissingError(f"{package} is not installed")


def _bind(
    gather: Callable[..., None],
    layers: Sequence[Tensor],
    rows: Tensor,
    out: Tensor,
    counts: Tensor,
    owners: Tensor | None = None,
    num_rows: Tensor | None = None,
    residuals: Sequence[Tensor] | None = None,
    sum_in_fp32: bool = False,
) -> BoundGather:
    """What NativeGather does, for an implementation that takes tensors."""

    def call(layers: Sequence[Tensor], count: int | None = None, residuals: Sequence[Tensor] | None = None) -> None:
        kept, owned = rows[:count], None if owners is None else owners[:count]
        check_gather(layers, kept, out[:count], counts, owned, num_rows, residuals)
        if rows.device.type == "cpu":
            check_rows(kept, layers[0].shape[0], owned, counts.shape[0], num_rows)
        if kept.numel() and layers[0].numel():
            gather(layers, kept, out[:count], counts, owned, num_rows, residuals, sum_in_fp32)

    return call


_LOADERS: dict[str, Callable[[], Implementation]] = {
    "cuda": _cuda,
    "triton": _triton,
    "cpp": _cpp,
    "numba": _numba,
    "torch": _torch,
}
