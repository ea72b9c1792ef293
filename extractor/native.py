"""The compiled libraries beside the package: finding them, checking their ABI, describing a call. See csrc/gather.h."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

ABI_VERSION = 1
# csrc/gather.h: more layers would not fit the 4 KiB that CUDA passes to a kernel by value.
MAX_LAYERS = 96
BAD_ROW = 2


class NativeMissingError(Exception):
    """Why a library can't be used here. Caught by the choice of an implementation, which says it aloud."""


class GatherArgs(ctypes.Structure):
    """extractor_gather_args of csrc/gather.h, field by field."""

    _fields_ = (
        ("layers", ctypes.c_void_p * MAX_LAYERS),
        ("residuals", ctypes.c_void_p * MAX_LAYERS),
        ("layer_strides", ctypes.c_int64 * MAX_LAYERS),
        ("residual_strides", ctypes.c_int64 * MAX_LAYERS),
        ("rows", ctypes.c_void_p),
        ("owners", ctypes.c_void_p),
        ("num_rows", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("max_rows", ctypes.c_int32),
        ("num_layers", ctypes.c_int32),
        ("hidden", ctypes.c_int32),
        ("tokens", ctypes.c_int32),
        ("samples", ctypes.c_int32),
        ("source", ctypes.c_int32),
        ("stored", ctypes.c_int32),
        ("pair", ctypes.c_int32),
        ("max_blocks", ctypes.c_int32),
    )


class NativeLibrary:
    """One loaded library. `gather` takes the address of a GatherArgs and a stream, and returns 0 or an error code."""

    def __init__(self, path: Path, only_launches: bool = False) -> None:
        """`only_launches`: its calls return in microseconds and keep the interpreter's lock, because a thread that got
        it could hold the caller up for much longer. Raises NativeMissingError when the file is absent, does not load,
        or has another ABI."""
        if not path.is_file():
            raise NativeMissingError(f"{path.name} was not built (`python setup.py build_native`)")
        try:
            self._library = (ctypes.PyDLL if only_launches else ctypes.CDLL)(str(path))
        except OSError as error:
            raise NativeMissingError(f"{path.name} does not load: {error}") from error
        found = (self._library.extractor_abi_version(), self._library.extractor_args_bytes())
        expected = (ABI_VERSION, ctypes.sizeof(GatherArgs))
        if found != expected:
            raise NativeMissingError(
                f"{path.name} has ABI version {found[0]} with {found[1]} argument bytes, this package speaks version "
                f"{expected[0]} with {expected[1]}; build it again"
            )
        self.path = self._text("extractor_path")
        self.gather = self.function("extractor_gather_rows")

    def function(self, name: str) -> ctypes._NamedFuncPointer:
        """A gather function by its exported name."""
        found = self._library[name]
        found.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        found.restype = ctypes.c_int32
        return found

    def error(self, code: int) -> str:
        """What an error code of `gather` means."""
        return self._text("extractor_error_string", code)

    def usable_devices(self) -> int:
        """CUDA devices of compute capability 8.0 and up that the library's runtime can drive; 0 without a driver."""
        return int(self._library.extractor_usable_devices())

    def _text(self, name: str, *arguments: int) -> str:
        function = self._library[name]
        function.restype = ctypes.c_char_p
        return bytes(function(*arguments)).decode()


@functools.cache
def load(name: str) -> NativeLibrary:
    """The library `cpu` or `cuda` beside this file. Raises NativeMissingError."""
    return NativeLibrary(Path(__file__).with_name(f"libextractor_{name}.so"), only_launches=name == "cuda")
