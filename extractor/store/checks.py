"""What the writer refuses: rows of another shape, holes, repeated rows, a seal that does not fit its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from extractor.errors import StoreError
from extractor.manifest import Manifest
from extractor.record import STATS
from extractor.sizes import counted


def row_bytes(rows: np.ndarray, manifest: Manifest, sample_id: str) -> np.ndarray:
    """rows [r, L, H] -> their bytes uint8 [r, L * H * 2]; a copy only where `rows` is not C-contiguous."""
    if rows.ndim != 3 or rows.shape[1:] != manifest.row_shape or rows.dtype.name not in (manifest.dtype, "uint16"):
        layers, hidden = manifest.row_shape
        raise StoreError(
            f"rows of sample {sample_id!r} are {rows.dtype} {list(rows.shape)}, the store keeps {manifest.dtype} "
            f"[r, {layers}, {hidden}]; write that dtype (or its bits as uint16) and shape"
        )
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), manifest.row_bytes)


def rows_per_tile(tile_bytes: int, bytes_of_row: int) -> int:
    """Whole rows in a tile. Raises StoreError when not one fits."""
    rows = tile_bytes // bytes_of_row
    if rows == 0:
        raise StoreError(f"a row of {bytes_of_row:,} bytes does not fit a tile of {tile_bytes:,}; keep fewer layers")
    return rows


def check_seal(
    sample_id: str, token_ids: np.ndarray, loss_mask: np.ndarray, stats: np.ndarray, manifest: Manifest
) -> None:
    """Raise StoreError unless mask and tokens are equally long and there is one STATS record a layer."""
    if len(loss_mask) != len(token_ids):
        raise StoreError(
            f"sample {sample_id!r} has {len(token_ids)} token ids and a loss mask of {len(loss_mask)}; both must be "
            "equally long; pass one mask value a token"
        )
    if stats.dtype != STATS or stats.shape != (len(manifest.layer_ids),):
        raise StoreError(
            f"stats of sample {sample_id!r} are {stats.dtype} {list(stats.shape)}, expected record.STATS "
            f"[{len(manifest.layer_ids)}]; make them with stats_from_counts"
        )


def check_coverage(sample_id: str, spans: Sequence[tuple[int, int]], num_tokens: int) -> None:
    """Raise StoreError unless the spans cover rows 0 to num_tokens - 1, each exactly once."""
    if num_tokens == 0:
        raise _uncovered(sample_id, "it has no tokens", num_tokens)
    end = 0
    for start, stop in sorted(spans):
        if start > end:
            raise _uncovered(sample_id, f"rows {end} to {start - 1} were never written", num_tokens)
        if start < end:
            raise _uncovered(sample_id, f"rows {start} to {min(stop, end) - 1} were written twice", num_tokens)
        end = stop
    if end < num_tokens:
        raise _uncovered(sample_id, f"rows {end} to {num_tokens - 1} were never written", num_tokens)
    if end > num_tokens:
        raise _uncovered(sample_id, f"rows {num_tokens} to {end - 1} lie beyond its end", num_tokens)


def _uncovered(sample_id: str, what: str, num_tokens: int) -> StoreError:
    return StoreError(
        f"sample {sample_id!r} of {counted(num_tokens, 'token')} can't be sealed: {what}; each of its rows must be "
        "captured "
        "exactly once; discard the sample and extract it again"
    )
