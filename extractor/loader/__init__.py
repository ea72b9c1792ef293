"""From store to trainer: `HiddenStateDataset` (packed, sharded, resumable) and `HiddenStateSamples` (map-style)."""

from extractor.loader.batch import Batch, BatchOptions
from extractor.loader.dataset import HiddenStateDataset
from extractor.loader.prefetch import BatchLoader
from extractor.loader.single import HiddenStateSamples

__all__ = ["Batch", "BatchLoader", "BatchOptions", "HiddenStateDataset", "HiddenStateSamples"]
