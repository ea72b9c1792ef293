"""How a tile's bytes are stored: as they are, or losslessly compressed. Bit patterns are never interpreted."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from extractor.errors import CorruptError, StoreError


class Codec(Protocol):
    """raw uint8 [n] <-> stored bytes."""

    def encode(self, raw: np.ndarray) -> bytes | np.ndarray: ...

    def decode_into(self, stored: np.ndarray, raw: np.ndarray, where: str) -> None:
        """Fill `raw` uint8 [n] from `stored`. Raises CorruptError when they do not fit."""


class Raw:
    """Stored bytes are the tile's bytes, so a reader can take any row without reading the rest."""

    def encode(self, raw: np.ndarray) -> np.ndarray:
        return raw

    def decode_into(self, stored: np.ndarray, raw: np.ndarray, where: str) -> None:
        if stored.size != raw.size:
            raise CorruptError(f"{where} holds {stored.size} bytes, expected {raw.size}")
        raw[:] = stored


class ShuffleZstd:
    """Blosc2: the low and the high bytes of the 2-byte values apart, then zstd level 1 (1.42x on bf16 values kept as
    fp16, 1.12x on values that use all fp16 bits; levels above 1 gain under 1% for half the speed)."""

    def __init__(self) -> None:
        try:
            import blosc2
        except ImportError as error:
            raise StoreError(
                "codec shuffle-zstd needs the package blosc2, which can't be imported; pip install blosc2"
            ) from error
        # Off by default there: several threads would take turns, and the engine's thread would wait for each tile.
        blosc2.set_releasegil(True)
        self._blosc2 = blosc2

    def encode(self, raw: np.ndarray) -> bytes:
        blosc2 = self._blosc2
        stored: bytes = blosc2.compress2(
            raw, codec=blosc2.Codec.ZSTD, clevel=1, typesize=2, filters=[blosc2.Filter.SHUFFLE], nthreads=1
        )
        return stored

    def decode_into(self, stored: np.ndarray, raw: np.ndarray, where: str) -> None:
        try:
            size = self._blosc2.get_cbuffer_sizes(stored)[0]
            if size == raw.size:
                self._blosc2.decompress2(stored, dst=raw, nthreads=1)
        except (RuntimeError, ValueError, TypeError) as error:
            raise CorruptError(f"{where} can't be decompressed ({error})") from error
        if size != raw.size:
            raise CorruptError(f"{where} decompresses to {size} bytes, expected {raw.size}")


def codec(name: str) -> Codec:
    """The codec of a manifest's name."""
    return Raw() if name == "none" else ShuffleZstd()
