"""Recompute samples with an independent engine and compare every element with the store."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from extractor.errors import InputError, StoreError, UsageError
from extractor.fidelity import HIGHER_PRECISION, LayerError
from extractor.manifest import Manifest
from extractor.model_info import ModelInfo
from extractor.store import Store, StoredSample

if TYPE_CHECKING:
    from extractor.engines.transformers import ResidualReader


@dataclass(frozen=True, slots=True)
class ReferenceReport:
    """Result of `verify_reference`: one LayerError per stored layer, in stored order."""

    samples: list[str]
    layers: list[LayerError]

    @property
    def ok(self) -> bool:
        """Whether every value lies within tolerance; False where nothing was compared."""
        return bool(self.samples) and all(layer.elements and not layer.beyond_tolerance for layer in self.layers)

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "samples": self.samples, "layers": [asdict(layer) for layer in self.layers]}


def verify_reference(
    store: Store,
    model_dir: Path,
    num_samples: int,
    *,
    seed: int = 0,
    trust_remote_code: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> ReferenceReport:
    """Compare `num_samples` samples of the store with `model_dir` run by transformers. Another `seed` draws others.

    Raises InputError when the folder holds another model than the store's, UsageError for no samples and StoreError for
    an empty store: where nothing was compared, nothing can be approved.
    """
    if num_samples < 1:
        raise UsageError(f"{num_samples} samples were to be compared; nothing would be shown; compare at least 1")
    _check_model(store, model_dir)
    if not len(store):
        raise StoreError(f"{store.path} holds no samples, so there is nothing to compare; extract some first")
    compute = _computed_in(store.manifest)
    readers = _readers(model_dir, compute, trust_remote_code)
    chosen = random.Random(seed).sample(sorted(store), min(num_samples, len(store)))
    layers = [LayerError(layer_id) for layer_id in store.manifest.layer_ids]
    for done, sample_id in enumerate(chosen, 1):
        _compare(store[sample_id], readers, layers, store.manifest.dtype, compute)
        if report is not None:
            report(done, len(chosen))
    return ReferenceReport(chosen, layers)


def _computed_in(manifest: Manifest) -> str:
    """The dtype whose rounding the stored values may show. Imported files do not say what they were computed in: bf16
    states most likely came out of a bf16 engine, others out of one in the checkpoint's dtype."""
    if "compute_dtype" in manifest.options:
        return str(manifest.options["compute_dtype"])
    if manifest.dtype == "bfloat16" or manifest.model_dtype not in HIGHER_PRECISION:
        return "bfloat16"
    return manifest.model_dtype


def _check_model(store: Store, model_dir: Path) -> None:
    info = ModelInfo.from_dir(model_dir)
    if info.config_hash != store.manifest.model_config_hash:
        raise InputError(
            f"{model_dir} is not the model of this store: its config has hash {info.config_hash}, the store was made "
            f"with {store.manifest.model_name} ({store.manifest.model_config_hash}); pass that model's folder"
        )


def _readers(model_dir: Path, compute: str, trust_remote_code: bool) -> tuple[ResidualReader, ResidualReader]:
    """A reference in the engine's dtype, and one a precision higher."""
    from extractor.engines.transformers import ResidualReader

    same, exact = (
        ResidualReader(model_dir, dtype, trust_remote_code=trust_remote_code)
        for dtype in (compute, HIGHER_PRECISION[compute])
    )
    return same, exact


def _compare(
    sample: StoredSample,
    readers: tuple[ResidualReader, ResidualReader],
    layers: Sequence[LayerError],
    dtype: str,
    compute: str,
) -> None:
    layer_ids = [layer.layer_id for layer in layers]
    same, exact = (reader.read(sample.token_ids, layer_ids) for reader in readers)
    stored = np.asarray(sample.hidden_states)
    for slot, layer in enumerate(layers):
        layer.add(
            sample.sample_id,
            stored[:, slot],
            same[slot].double().cpu().numpy(),
            exact[slot].double().cpu().numpy(),
            dtype,
            compute,
        )
