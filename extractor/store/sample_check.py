"""Whether one sample is what its seal says: lengths, checksums, and the counts of its values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from extractor.errors import CorruptError, StoreError
from extractor.manifest import Manifest
from extractor.store.checks import check_coverage
from extractor.store.sample import StoredSample

if TYPE_CHECKING:
    from extractor.store.reader import Store

_ABS = np.uint16(0x7FFF)
_INF = {"float16": 0x7C00, "bfloat16": 0x7F80}  # bits of infinity; more is NaN, one less the largest finite value
_TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


class ValueCounts:
    """Counts over the rows seen so far, a layer each, from bit patterns. The largest finite |x| is kept as its bits."""

    def __init__(self, layers: int, dtype: str) -> None:
        self._inf_bits = _INF[dtype]
        self.inf, self.nan, self.saturated, self.largest = (np.zeros(layers, np.int64) for _ in range(4))

    def add(self, rows: np.ndarray) -> None:
        """rows uint16 bits [r, L, H]; destroyed."""
        rows &= _ABS
        for layer in range(rows.shape[1]):
            self._add_layer(layer, rows[:, layer])

    def _add_layer(self, layer: int, bits: np.ndarray) -> None:
        largest = int(bits.max())
        if largest >= self._inf_bits:
            self.inf[layer] += np.count_nonzero(bits == self._inf_bits)
            self.nan[layer] += np.count_nonzero(bits > self._inf_bits)
            largest = int(bits.max(initial=0, where=bits < self._inf_bits))
        if largest == self._inf_bits - 1:
            self.saturated[layer] += np.count_nonzero(bits == largest)
        self.largest[layer] = max(self.largest[layer], largest)


def check_sample(store: Store, row: int, *, tiles: bool) -> StoredSample:
    """Check the sample at place `row` of `store` and return it. `tiles`: read and compare those too.

    Raises CorruptError with the sample's id for what does not fit.
    """
    sample = store.at(row)
    _check_listed(store, row, sample)
    check_lengths(sample, store.manifest)
    if tiles:
        check_values(sample, store.manifest)
    return sample


def check_values(sample: StoredSample, manifest: Manifest) -> None:
    """Compare every tile with its checksum (where read with check=True) and the seal's counts with the values."""
    counts = ValueCounts(len(sample.stats), manifest.dtype)
    for tile in sample.seal.tiles:
        rows = np.empty((int(tile["rows"]), *manifest.row_shape), np.uint16)
        sample.copy_rows(rows, int(tile["position"]), int(tile["position"]) + len(rows))
        counts.add(rows)
    _check_counts(sample, counts, manifest.dtype)


def _check_listed(store: Store, row: int, sample: StoredSample) -> None:
    listed = store.listed(row)
    sealed = sample.sample_id, len(sample.token_ids), sample.seal.stored_bytes
    if listed != sealed:
        raise CorruptError(f"the index lists {listed} (id, tokens, bytes) where the seal has {sealed}")


def check_lengths(sample: StoredSample, manifest: Manifest) -> None:
    """Raise CorruptError unless the tiles cover each row once and rows have the store's shape."""
    expected = manifest.row_bytes, len(manifest.layer_ids)
    found = sample.seal.row_bytes, len(sample.stats)
    if found != expected:
        raise CorruptError(f"sample {sample.sample_id!r} has {found} bytes a row and layers, the store has {expected}")
    tiles = sample.seal.tiles
    spans = [(int(t["position"]), int(t["position"] + t["rows"])) for t in tiles]
    try:
        check_coverage(sample.sample_id, spans, len(sample))
    except StoreError as error:
        raise CorruptError(f"the seal of sample {sample.sample_id!r} names other rows than it has: {error}") from error


def _check_counts(sample: StoredSample, counts: ValueCounts, dtype: str) -> None:
    """What the seal counted on the way in must fit the values. `max_abs` was taken before rounding, saturation before
    storing: a value of the largest finite size need not be a saturated one."""
    for layer, stats in enumerate(sample.stats):
        for name in ("inf", "nan"):
            found = int(getattr(counts, name)[layer])
            if int(stats[name]) != found:
                raise _miscounted(sample, layer, f"{found} {name} values", int(stats[name]))
        if int(stats["saturated"]) > counts.saturated[layer]:
            raise _miscounted(
                sample, layer, f"{counts.saturated[layer]} values of the largest size", stats["saturated"]
            )
        largest = min(_bits(stats["max_abs"], dtype), _INF[dtype] - 1)
        if largest != counts.largest[layer]:
            raise _miscounted(sample, layer, f"a largest value of bits {counts.largest[layer]:#06x}", hex(largest))


def _bits(value: np.float32, dtype: str) -> int:
    with np.errstate(over="ignore"):
        return int(np.asarray(value, np.float32).astype(_TYPES[dtype]).view(np.uint16))


def _miscounted(sample: StoredSample, layer: int, found: str, sealed: object) -> CorruptError:
    return CorruptError(f"sample {sample.sample_id!r} layer slot {layer} holds {found}, its seal says {sealed}")
