"""One batch: which rows go where, and reading them there.

Shapes: N tokens and B samples in a batch, T tokens of its longest sample, L slots of a row, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from extractor.contract import require_last
from extractor.errors import CorruptError, UsageError
from extractor.loader.buffers import BufferPool
from extractor.loader.samples import SampleSet
from extractor.packing import Ints
from extractor.store import StoredSample

Batch = dict[str, Any]
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """dtype: of hidden_states, the store's when None.  last_apart: slot n under its own key.  padded: [B, T] instead of
    [N].  on_corrupt: `raise`, or `skip` (see BatchReader).  pin_memory: page-locked, for copies to a GPU."""

    dtype: torch.dtype | None = None
    last_apart: bool = False
    padded: bool = False
    on_corrupt: str = "raise"
    pin_memory: bool = False

    def __post_init__(self) -> None:
        if self.on_corrupt not in ("raise", "skip"):
            raise UsageError(f"on_corrupt is {self.on_corrupt!r}; 'raise' and 'skip' are allowed; choose one")
        if self.dtype is not None and not self.dtype.is_floating_point:
            raise UsageError(f"hidden states can't be delivered as {self.dtype}; pass a floating point dtype or None")


@dataclass(slots=True)
class BatchReader:
    """Reads batches of a sample set.

    With on_corrupt=skip a damaged sample keeps its place with zero states and a zero loss mask, and its id is listed
    under `skipped`: shapes, and the number of batches on each rank, do not change, so no rank waits for another.
    """

    samples: SampleSet
    options: BatchOptions = field(default_factory=BatchOptions)
    pool: BufferPool = field(default_factory=BufferPool)

    def __post_init__(self) -> None:
        if self.options.last_apart:
            require_last(self.samples.manifest, "last_apart")

    def read(self, numbers: Ints, executor: Executor | None = None) -> Batch:
        """Samples `numbers` [B] -> batch. Every tensor owns its memory.

        input_ids int64 [N], position_ids int64 [N] (from 0 in each sample), loss_mask bool [N], hidden_states
        [N, L, H] (L - 1 with last_apart, and last_hidden_states [N, H] beside it), cu_seqlens int32 [B + 1], max_seqlen
        int, sample_ids and skipped lists of str. Padded: [B, T] in place of [N], attention_mask bool [B, T] in place of
        cu_seqlens; padding is 0. An executor reads samples in parallel.
        Raises CorruptError naming the sample (on_corrupt=raise), StoreError when the store is gone.
        """
        lengths = self.samples.lengths[numbers]
        rows = _Rows(lengths, self.options.padded)
        states = self._states(rows)
        tokens = torch.zeros(rows.total, dtype=torch.int64)
        mask = torch.zeros(rows.total, dtype=torch.bool)
        parts = [slice(start, start + length) for start, length in zip(rows.starts, lengths, strict=True)]
        run = executor.map if executor else map
        good = list(run(lambda n, part: self._fill(n, tokens[part], mask[part], states[part]), numbers.tolist(), parts))
        ids = [self.samples.ids[n] for n in numbers.tolist()]
        return {
            "sample_ids": ids,
            "skipped": [sample_id for sample_id, fine in zip(ids, good, strict=True) if not fine],
            "input_ids": rows.shaped(tokens),
            "loss_mask": rows.shaped(mask),
            **rows.geometry(),
            **self._named(rows.shaped(states)),
        }

    def _states(self, rows: _Rows) -> torch.Tensor:
        manifest = self.samples.manifest
        dtype = self.options.dtype or _DTYPES[manifest.dtype]
        shape = (rows.total, *manifest.row_shape)
        states = self.pool.tensor(shape, dtype, pin=self.options.pin_memory)
        for start, stop in rows.gaps():
            states[start:stop] = 0
        return states

    def _fill(self, number: int, tokens: torch.Tensor, mask: torch.Tensor, states: torch.Tensor) -> bool:
        """Read one sample into its place; False where it is skipped."""
        try:
            sample = self.samples[number]
            tokens.copy_(torch.from_numpy(sample.token_ids))
            self._copy_states(sample, states)
        except CorruptError as error:
            if self.options.on_corrupt == "raise":
                raise CorruptError(
                    f"sample {self.samples.ids[number]!r} is damaged: {error}; to train without it, pass "
                    'BatchOptions(on_corrupt="skip")'
                ) from error
            states.zero_()
            return False
        mask.copy_(torch.from_numpy(sample.loss_mask))
        return True

    def _copy_states(self, sample: StoredSample, states: torch.Tensor) -> None:
        stored = _DTYPES[self.samples.manifest.dtype]
        target = states if states.dtype == stored else self.pool.tensor(tuple(states.shape), stored)
        sample.copy_rows(target.view(torch.uint16).numpy())
        if target is not states:
            states.copy_(target)

    def _named(self, states: torch.Tensor) -> Batch:
        if not self.options.last_apart:
            return {"hidden_states": states}
        return {"hidden_states": states[..., :-1, :], "last_hidden_states": states[..., -1, :]}


class _Rows:
    """Where each sample's rows lie in a batch's flat buffers."""

    def __init__(self, lengths: Ints, padded: bool) -> None:
        self.lengths, self.padded = lengths, padded
        self.longest = int(lengths.max(initial=0))
        self.ends = np.cumsum(lengths)
        self.starts: Ints = np.arange(lengths.size) * self.longest if padded else self.ends - lengths
        self.total = self.longest * lengths.size if padded else int(lengths.sum())

    def gaps(self) -> Sequence[tuple[int, int]]:
        """Row ranges that belong to no sample."""
        if not self.padded:
            return []
        return [(int(s + n), int(s) + self.longest) for s, n in zip(self.starts, self.lengths, strict=True)]

    def shaped(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.view(self.lengths.size, self.longest, *flat.shape[1:]) if self.padded else flat

    def geometry(self) -> Batch:
        if self.padded:
            positions = torch.arange(self.longest).expand(self.lengths.size, -1)
            inside = positions < torch.from_numpy(self.lengths)[:, None]
            return {"position_ids": positions * inside, "attention_mask": inside, "max_seqlen": self.longest}
        boundaries = torch.zeros(self.lengths.size + 1, dtype=torch.int32)
        boundaries[1:] = torch.from_numpy(self.ends)
        positions = torch.arange(self.total) - torch.from_numpy(np.repeat(self.starts, self.lengths))
        return {"position_ids": positions, "cu_seqlens": boundaries, "max_seqlen": self.longest}
