"""speculators: an Arrow data set and `hidden_states/hs_{row}.safetensors`, as its ArrowDataset reads them.

Beside them `token_freq.pt`, how often each token is trained on: what its trainer makes a smaller draft vocabulary from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from extractor.errors import UsageError
from extractor.exports.format import Format, Record, pack_safetensors, pack_torch
from extractor.output import replace_all, writing
from extractor.store import Store


def _content(record: Record) -> dict[str, Any]:
    """token_ids int64 [T], hidden_states [T, A + 1, H] with slot n last, before the final norm."""
    assert record.last is not None
    states = torch.cat([record.aux, record.last[:, None]], 1)
    return {"token_ids": record.input_ids, "hidden_states": states}


def _finish(store: Store, out: Path) -> None:
    """The Arrow files and the counts appear together, once they are whole."""
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
    datasets.disable_progress_bars()
    with writing(out), _bare_os_errors(), TemporaryDirectory(prefix=".arrow-", dir=out) as scratch:
        rows = datasets.Dataset.from_generator(
            _rows,
            features=features,
            gen_kwargs={"store": store},
            cache_dir=f"{scratch}/cache",
            fingerprint=_fingerprint(store),
        )
        rows.set_format(type="torch")
        made = Path(scratch) / "made"
        rows.save_to_disk(made)
        (made / "token_freq.pt").write_bytes(pack_torch(_token_counts(store)))
        replace_all(made, out, sorted(file.name for file in made.iterdir()))


@contextmanager
def _bare_os_errors() -> Iterator[None]:
    """datasets wraps what the filesystem said in errors of its own, some of them OSErrors without a number."""
    try:
        yield
    except Exception as error:
        said = _system_error(error)
        if said is None or said is error:
            raise
        raise said from None


def _system_error(error: BaseException | None) -> OSError | None:
    """The error that the system gave, at whatever depth it is the cause."""
    while error is not None and not (isinstance(error, OSError) and error.errno):
        error = error.__cause__ or error.__context__
    return error


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
    pack=pack_safetensors,
    finish=_finish,
)
