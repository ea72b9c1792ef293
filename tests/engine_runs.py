"""Extraction in a process of its own, and its store against a reference, element by element.

vLLM's Transformers backend changes the transformers package it runs in, so the reference lives in a process that never
imports vLLM: this one.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from extractor import Config, extract
from extractor.engines.job import Progress
from extractor.engines.transformers import ResidualReader
from extractor.fidelity import HIGHER_PRECISION, LayerError
from extractor.samples import write_samples
from extractor.store import Store
from extractor.summary import Summary

# One token, the model's whole context, both sides of a multiple of the token budget, and short ones in between.
LENGTHS = (1, 2, 100, 128, 3, 50, 1, 127, 64, 63, 65)


def make_samples(
    file: Path,
    lengths: Iterable[int] = LENGTHS,
    *,
    vocab: int = 256,
    seed: int = 0,
    last_token: Mapping[str, int] | None = None,
) -> Path:
    """A samples file of random tokens; `last_token` replaces those of the samples it names."""
    rng = np.random.default_rng(seed)
    rows = [
        {"sample_id": f"s{i}", "source": "random", "input_ids": rng.integers(0, vocab, n).tolist()}
        for i, n in enumerate(lengths)
    ]
    for row in rows:
        row["input_ids"][-1] = (last_token or {}).get(row["sample_id"], row["input_ids"][-1])
    write_samples(file, rows)
    return file


class EngineProcess:
    """A process in which `extract` runs. vLLM is imported once for all runs; `restart` where that would do harm."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def extract(self, **options: Any) -> Summary:
        """`extract(Config(**options))`; its exceptions arrive here. `share` goes to `extract` itself."""
        return self.call(_extract, options)

    def interrupt(self, **options: Any) -> Summary:
        """The same with a Ctrl-C as soon as some samples are stored and others are under way."""
        return self.call(_interrupted, options)

    def kill_a_rank(self, **options: Any) -> Summary:
        """The same with one rank killed as soon as some samples are stored and others are under way."""
        return self.call(_with_a_killed_rank, options)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        return self._pool.submit(function, *args).result()

    def restart(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _extract(options: dict[str, Any]) -> Summary:
    return extract(Config(**{k: v for k, v in options.items() if k != "share"}), share=options.get("share", (0, 1)))


def _interrupted(options: dict[str, Any]) -> Summary:
    sent: list[int] = []

    def report(progress: Progress, total_samples: int, _total_tokens: int) -> None:
        if 0 < progress.samples < total_samples and not sent:
            sent.append(progress.samples)
            signal.raise_signal(signal.SIGINT)

    summary = extract(Config(**options), report)
    assert summary.interrupted, "the run ended before it could be interrupted"
    return summary


def _with_a_killed_rank(options: dict[str, Any]) -> Summary:
    killed: list[int] = []

    def report(progress: Progress, total_samples: int, _total_tokens: int) -> None:
        if 0 < progress.samples < total_samples and not killed:
            rank = multiprocessing.active_children()[-1]
            rank.kill()
            killed.append(rank.pid or 0)

    summary = extract(Config(**options), report)
    assert killed, "the run ended before a rank could be killed"
    return summary


class Reference:
    """Residual streams of a model by transformers, in the engine's dtype and one precision higher; each computed
    once."""

    def __init__(self, model: Path, compute: str = "float32") -> None:
        self.compute = compute
        self._readers = [ResidualReader(model, dtype) for dtype in (compute, HIGHER_PRECISION[compute])]
        self._known: dict[tuple[bytes, int], tuple[np.ndarray, np.ndarray]] = {}

    def read(self, token_ids: np.ndarray, layer_ids: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """(same dtype, higher) float64 [T, H] for each layer id."""
        key = token_ids.tobytes()
        missing = [layer_id for layer_id in layer_ids if (key, layer_id) not in self._known]
        if missing:
            same, exact = (reader.read(token_ids, missing) for reader in self._readers)
            for layer_id, a, b in zip(missing, same, exact, strict=True):
                self._known[key, layer_id] = (a.double().cpu().numpy(), b.double().cpu().numpy())
        return [self._known[key, layer_id] for layer_id in layer_ids]


@dataclass(frozen=True)
class Figures:
    """Of one store against its reference, over all layers and samples."""

    samples: int
    elements: int
    max_abs: float
    max_rel: float
    over_one_ulp: float  # share of elements
    beyond: int  # elements beyond the tolerance
    worst: str


def compare(store_path: Path, reference: Reference) -> Figures:
    """Every element of every sample of the store."""
    store = Store.open(store_path)
    layers = [LayerError(layer_id) for layer_id in store.manifest.layer_ids]
    for sample_id in store:
        sample = store[sample_id]
        rows = np.asarray(sample.hidden_states)
        for slot, (same, exact) in enumerate(reference.read(sample.token_ids, store.manifest.layer_ids)):
            layers[slot].add(sample_id, rows[:, slot], same, exact, store.manifest.dtype, reference.compute)
    return _figures(len(store), layers)


def _figures(samples: int, layers: Sequence[LayerError]) -> Figures:
    elements = sum(layer.elements for layer in layers)
    worst = max(layers, key=lambda layer: layer.worst.factor if layer.worst else -1.0)
    return Figures(
        samples=samples,
        elements=elements,
        max_abs=max(layer.max_abs for layer in layers),
        max_rel=max(layer.max_rel for layer in layers),
        over_one_ulp=sum(layer.beyond_one_ulp for layer in layers) / elements,
        beyond=sum(layer.beyond_tolerance for layer in layers),
        worst=f"layer {worst.layer_id}: {worst.worst}",
    )
