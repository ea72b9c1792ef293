"""How other projects dump hidden states on one machine, reduced to what costs time and as they ship it.

bf16 states of three layers for each sample, `torch.save` to the final name: no fsync, no checksum, no resume.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from extractor.samples import Sample


class HuggingFace:
    """`AutoModelForCausalLM` in fp32, logits included, since the dumps compute and drop them."""

    def __init__(self, model_dir: Path, layers: Sequence[int]) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
        self._layers = layers

    @torch.no_grad()
    def bare(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self._model(_ids([sample]))

    @torch.no_grad()
    def one_by_one(self, samples: Sequence[Sample], folder: Path) -> None:
        """Batch 1, `output_hidden_states=True`: BaldEagle, EAGLE's and Model-Optimizer's Hugging Face dumps."""
        folder.mkdir(exist_ok=True)
        for number, sample in enumerate(samples):
            states = self._states(_ids([sample]), None)[:, 0]
            _save(folder / f"data_{number}.ckpt", sample, states)

    @torch.no_grad()
    def padded(self, samples: Sequence[Sample], folder: Path, batch_size: int) -> None:
        """SpecForge's offline dump: batches in file order, padded to their longest; the padding is stored too."""
        folder.mkdir(exist_ok=True)
        for start, batch in _batches(samples, batch_size):
            ids = _ids(batch)
            mask = torch.tensor([[1] * s.token_ids.size + [0] * (ids.shape[1] - s.token_ids.size) for s in batch])
            states = self._states(ids, mask)
            for number, sample in enumerate(batch):
                _save(folder / f"data_{start + number}.ckpt", sample, states[:, number])

    def _states(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """[L, B, T, H] bf16."""
        output: Any = self._model(ids, attention_mask=mask, output_hidden_states=True)
        return torch.stack([output.hidden_states[layer] for layer in self._layers]).bfloat16()


def padding(samples: Sequence[Sample], batch_size: int) -> float:
    """Tokens computed and stored / tokens there are."""
    computed = sum(len(batch) * max(s.token_ids.size for s in batch) for _, batch in _batches(samples, batch_size))
    return float(computed / sum(s.token_ids.size for s in samples))


def _batches(samples: Sequence[Sample], size: int) -> Iterator[tuple[int, Sequence[Sample]]]:
    for start in range(0, len(samples), size):
        yield start, samples[start : start + size]


def _ids(batch: Sequence[Sample]) -> Tensor:
    rows = [torch.from_numpy(sample.token_ids.astype(np.int64)) for sample in batch]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _save(file: Path, sample: Sample, states: Tensor) -> None:
    # clone: without it torch.save writes the whole batch's storage for each sample.
    torch.save(
        {
            "input_ids": torch.from_numpy(sample.token_ids),
            "loss_mask": torch.from_numpy(sample.loss_mask),
            "hidden_state": states.clone(),
        },
        file,
    )
