"""Tensor-parallel ranks in one process: as many Handovers as ranks, all fed with the steps of one fake V2 runner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from fake_v2_runner import HIDDEN, FakeModel, FakeScheduler, FakeV2Runner, expected_rows
from store_cases import a_manifest

from extractor.engines.job import Job
from extractor.engines.vllm.handover import Handover
from extractor.engines.vllm.runners import RunnerView
from extractor.samples import Sample
from extractor.store import Store, prepare_store

LAYER_IDS = (5, 2, 6)  # not ascending: the order of the user's
BUDGET = 48
LENGTHS = (1, 2, 30, 48, 49, 100, 1, 7, 64, 3, 95, 96, 97, 5, 200)


def make_samples(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [
        Sample(f"s{i}", rng.integers(1, 1000, n).astype(np.int32), rng.integers(0, 2, n).astype(np.uint8))
        for i, n in enumerate(lengths)
    ]


def run(
    folder: Path,
    samples: list[Sample],
    ranks: int,
    *,
    preempt_every: int = 0,
    seed: int = 0,
    max_running: int = 4,
    layer_ids: tuple[int, ...] = LAYER_IDS,
    model: FakeModel | None = None,
) -> tuple[Store, list[dict]]:
    """The store that `ranks` ranks leave, and their last statuses."""
    manifest = a_manifest(layer_ids=layer_ids, num_layers=6, hidden_size=HIDDEN, engine="vllm")
    prepare_store(folder, manifest)
    job = Job(
        run_id="r",
        store=folder,
        layer_ids=layer_ids,
        num_layers=6,
        hidden_size=HIDDEN,
        dtype="float16",
        overflow="saturate",
        expected_bytes=0,
        token_budget=BUDGET,
        commit_seconds=1.0,
    )
    runner = FakeV2Runner(BUDGET, model)
    view = RunnerView(runner, layer_ids)
    handovers = [Handover(view, job, rank, ranks, torch.device("cpu")) for rank in range(ranks)]
    scheduler = FakeScheduler(samples, BUDGET, max_running, preempt_every, seed)
    try:
        for output in scheduler.steps():
            runner.execute_model(output)
            for handover in handovers:
                handover.step(output)
            runner.sample_tokens()
    finally:
        statuses = [handover.finish() for handover in handovers]
    return Store.open(folder), statuses


def suspicions(statuses: Sequence[dict]) -> set[str]:
    """Kinds of what the detectors found."""
    return {finding["kind"] for status in statuses for finding in status["findings"]}


def differences(store: Store, samples: Sequence[Sample]) -> list[str]:
    """What is wrong with the store, in words; empty when every value of every sample is right."""
    wrong = [f"{sample.sample_id} is missing" for sample in samples if sample.sample_id not in store]
    for sample in samples:
        if sample.sample_id not in store:
            continue
        stored = store[sample.sample_id]
        if not np.array_equal(stored.token_ids, sample.token_ids):
            wrong.append(f"{sample.sample_id} has other tokens")
        if not np.array_equal(stored.loss_mask, sample.loss_mask):
            wrong.append(f"{sample.sample_id} has another loss mask")
        for slot, layer_id in enumerate(store.manifest.layer_ids):
            rows = np.asarray(stored.hidden_states)[:, slot].astype(np.float32)
            bad = np.flatnonzero((rows != expected_rows(sample.token_ids, layer_id)).any(axis=1))
            if bad.size:
                wrong.append(f"{sample.sample_id} layer {layer_id}: {bad.size} rows differ, the first is {bad[0]}")
    return wrong
