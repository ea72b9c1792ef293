"""speculators: an Arrow data set and `hidden_states/hs_{row}.safetensors`, as its ArrowDataset reads them.

Beside them `token_freq.pt`, how often each token is trained on: what its trainer makes a smaller draft vocabulary from.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from extractor.errors import UsageError
from extractor.exports.format import Format, Record, save_safetensors
from extractor.store import Store


def _content(record: Record) -> dict[str, Any]:
    """token_ids int64 [T], hidden_states [T, A + 1, H] with slot n last, before the final norm."""
    assert record.last is not None
    states = torch.cat([record.aux, record.last[:, None]], 1)
    return {"token_ids": record.input_ids, "hidden_states": states}


def _finish(store: Store, out: Path) -> None:
    """The Arrow files appear one by one, `state.json` last; a run that was cut off writes them all again."""
    try:
        import datasets
    except ImportError as error:
        raise UsageError("exporting to speculators needs the package datasets; pip install datasets") from error
    features = datasets.Features(
        {
            "input_ids": datasets.List(datasets.Value("int64")),
            "loss_mask": datasets.List(datasets.Value("int64")),
            "seq_len": datasets.Value("int64"),
            "sample_id": datasets.Value("string"),
        }
    )
    with TemporaryDirectory(dir=out) as cache:
        rows = datasets.Dataset.from_generator(
            _rows, features=features, gen_kwargs={"store": store}, cache_dir=cache, fingerprint=_fingerprint(store)
        )
        rows.set_format(type="torch")
        rows.save_to_disk(out)
    torch.save(_token_counts(store), out / "token_freq.pt")


def _rows(store: Store) -> Iterator[dict[str, Any]]:
    for sample_id in store:
        sample = store[sample_id]
        yield {
            "input_ids": sample.token_ids,
            "loss_mask": sample.loss_mask,
            "seq_len": len(sample),
            "sample_id": sample_id,
        }


def _token_counts(store: Store) -> dict[int, int]:
    """Token id -> times that it stands under the loss mask."""
    counts = np.zeros(0, np.int64)
    for sample_id in store:
        sample = store[sample_id]
        trained = np.bincount(sample.token_ids[sample.loss_mask.astype(bool)])
        counts = np.pad(counts, (0, max(0, trained.size - counts.size)))
        counts[: trained.size] += trained
    return {int(token): int(counts[token]) for token in np.flatnonzero(counts)}


def _fingerprint(store: Store) -> str:
    return f"{store.manifest.fingerprint()}-{len(store)}"


FORMAT = Format(
    name="speculators",
    path=lambda number, sample_id: Path("hidden_states") / f"hs_{number}.safetensors",
    content=_content,
    save=save_safetensors,
    finish=_finish,
)
