"""The map-style view: one sample per index, for trainers that bring their own sampler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from extractor.loader.batch import Batch, BatchOptions, BatchReader
from extractor.loader.samples import SampleSet, Stores
from extractor.packing import Ints


class HiddenStateSamples(Dataset[Batch]):
    """samples[i]: sample_id, input_ids int64 [T], position_ids, loss_mask bool [T], hidden_states [T, L, H] (and
    last_hidden_states [T, H] with last_apart). `lengths` int64 [N] is there for samplers without reading anything.

    `samples.packed([i, j, ...])` reads several as one batch; as the collate function of a DataLoader use `list`, or
    fetch batches by index with a batch sampler and collate_fn=lambda batch: batch.
    """

    def __init__(
        self, stores: Stores, *, sample_ids: Iterable[str] | None = None, options: BatchOptions | None = None
    ) -> None:
        """Arguments and errors as for HiddenStateDataset."""
        self.samples = SampleSet(stores, sample_ids)
        self._reader = BatchReader(self.samples, options or BatchOptions())

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def lengths(self) -> Ints:
        return self.samples.lengths

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Raises IndexError beyond the end, else as BatchReader.read."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        batch = self.packed([index % len(self)])
        batch["sample_id"] = batch.pop("sample_ids")[0]
        del batch["cu_seqlens"], batch["max_seqlen"], batch["skipped"]
        return batch

    def packed(self, indices: Sequence[int]) -> Batch:
        """These samples as one batch, as HiddenStateDataset delivers it."""
        return self._reader.read(np.asarray(indices, np.int64))
