"""One stored sample: what its seal says at once, its rows when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import ml_dtypes
import numpy as np

from extractor.errors import CorruptError, UsageError
from extractor.manifest import Manifest
from extractor.record import Seal, running_checksum
from extractor.sizes import counted
from extractor.store.codec import Codec, Raw
from extractor.store.neighbours import Place
from extractor.store.remedy import naming_repair
from extractor.store.shard_file import ShardFile

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


class StoredSample:
    """token_ids int32 [T]; loss_mask uint8 [T]; stats STATS [L] (saturated, inf, nan, max_abs of each layer)."""

    def __init__(self, seal: Seal, shard: ShardFile, manifest: Manifest, codec: Codec, *, check: bool) -> None:
        self.seal = seal
        self.sample_id = seal.sample_id
        self.token_ids = seal.token_ids
        self.loss_mask = seal.loss_mask
        self.stats = seal.stats
        self.layer_ids = manifest.layer_ids
        self._shard, self._codec, self._check = shard, codec, check
        self._row_shape, self._dtype = manifest.row_shape, DTYPES[manifest.dtype]

    @property
    def shard_name(self) -> str:
        return self._shard.path.name

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"StoredSample({self.sample_id!r}, {len(self)} tokens, {self._dtype} {list(self._row_shape)} a token)"

    @cached_property
    def hidden_states(self) -> np.ndarray:
        """[T, L, H] in the store's dtype, read once and then kept with this object; yours to change."""
        out = np.empty((len(self), *self._row_shape), self._dtype)
        self.copy_rows(out)
        return out

    def copy_rows(self, out: np.ndarray, start: int = 0, stop: int | None = None) -> None:
        """Fill out [stop - start, L, H] with rows start .. stop - 1, straight from the disk where not compressed.

        `out` is C-contiguous and writable, of the store's dtype or uint16 (its bits). Raises UsageError for another
        range, shape or dtype; CorruptError when stored bytes do not fit.
        """
        stop = len(self) if stop is None else stop
        target = self._bytes_of(out, start, stop)
        with naming_repair(self._shard.store):
            self._copy_bytes(target, start, stop)

    def _copy_bytes(self, target: np.ndarray, start: int, stop: int) -> None:
        """Fill target uint8 [stop - start, row_bytes]."""
        tiles = [t for t in self.seal.tiles if t["position"] < stop and t["position"] + t["rows"] > start]
        whole: list[Place] = []
        for tile in tiles:
            first, count = int(tile["position"]), int(tile["rows"])
            begin, end = max(start, first), min(stop, first + count)
            out = target[begin - start : end - start].reshape(-1)
            if self._is_read_straight and out.size == tile["stored_bytes"]:
                whole.append((out, int(tile["offset"])))
            else:
                self._copy_tile(tile, out, begin - first)
        self._shard.read_values(whole)

    @property
    def _is_read_straight(self) -> bool:
        """Whether whole tiles can be read one behind the other: nothing is to be done with each."""
        return isinstance(self._codec, Raw) and not self._check

    def stored_tiles(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(TILE [], its stored bytes uint8 [n]) one after the other, for copying into another shard."""
        for tile in self.seal.tiles:
            stored = np.empty(int(tile["stored_bytes"]), np.uint8)
            with naming_repair(self._shard.store):
                self._read_tile(tile, stored)
            yield tile, stored

    def _copy_tile(self, tile: np.ndarray, out: np.ndarray, skip: int) -> None:
        """Rows of one tile from row `skip` of it on -> out uint8 [n]."""
        raw_bytes = int(tile["rows"]) * self.seal.row_bytes
        whole = out.size == raw_bytes
        is_raw = isinstance(self._codec, Raw)
        if is_raw and not whole and not self._check:
            self._shard.read_part(out, int(tile["offset"]) + skip * self.seal.row_bytes)
            return
        stored = out if is_raw and whole else np.empty(int(tile["stored_bytes"]), np.uint8)
        self._read_tile(tile, stored)
        if is_raw and whole:
            return
        raw = out if whole else np.empty(raw_bytes, np.uint8)
        self._codec.decode_into(stored, raw, self._where(tile))
        if not whole:
            out[:] = raw[skip * self.seal.row_bytes :][: out.size]

    def _read_tile(self, tile: np.ndarray, stored: np.ndarray) -> None:
        if stored.size != tile["stored_bytes"]:
            raise CorruptError(
                f"{self._where(tile)} has {stored.size} bytes of rows, {tile['stored_bytes']} are stored"
            )
        if not self._check:
            self._shard.read_value(stored, int(tile["offset"]))
            return
        digest = running_checksum()
        self._shard.read_value(stored, int(tile["offset"]), digest.update)
        if digest.intdigest() != int(tile["checksum"]):
            raise CorruptError(f"{self._where(tile)} does not match its checksum")

    def _where(self, tile: np.ndarray) -> str:
        first = int(tile["position"])
        return (
            f"the tile of rows {first} to {first + int(tile['rows']) - 1} of sample {self.sample_id!r} "
            f"(byte {int(tile['offset'])} of {self._shard.file})"
        )

    def _bytes_of(self, out: np.ndarray, start: int, stop: int) -> np.ndarray:
        """View out as uint8 [rows, row_bytes] after checking that it fits."""
        if not 0 <= start <= stop <= len(self):
            raise UsageError(
                f"rows {start} to {stop} of sample {self.sample_id!r} do not exist; it has "
                f"{counted(len(self), 'token')}"
            )
        fits = out.shape == (stop - start, *self._row_shape) and out.dtype in (self._dtype, np.dtype(np.uint16))
        if not fits or not out.flags.c_contiguous or not out.flags.writeable:
            raise UsageError(
                f"the buffer for rows {start} to {stop} of sample {self.sample_id!r} is {out.dtype} {list(out.shape)}; "
                f"pass a writable C-contiguous {self._dtype} {[stop - start, *self._row_shape]}"
            )
        return out.view(np.uint8).reshape(stop - start, self.seal.row_bytes)
