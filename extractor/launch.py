"""For training launchers: extract on their own ranks, and agree on what to train on.

Every function here is called by all ranks of torch.distributed together. What fails on one rank is raised on all of
them, so that none is left waiting. Without torch.distributed they work as one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from extractor.config import Config
from extractor.errors import EngineError
from extractor.extract_apart import extract_apart
from extractor.extraction import extract
from extractor.job_setup import check_input, make_manifest
from extractor.layers import resolve_layers
from extractor.loader.ranks import resolve_ranks
from extractor.loader.samples import SampleSet, Stores
from extractor.store import prepare_store
from extractor.summary import Summary

Result = TypeVar("Result")
# Ranks wait for the slowest one; a collective's usual limit of 10 to 30 minutes would end a long extraction.
_PATIENCE = timedelta(days=30)


def extract_on_ranks(config: Config) -> list[Summary]:
    """Extract what the store lacks; returns each working rank's summary when all have finished.

    Engine `transformers`: every rank runs the model on its device and takes an equal part. Engine `vllm`: rank 0 has it
    run in a process of its own, with its own tensor parallelism, on GPUs that the other ranks leave alone. Raises
    EngineError on every rank when one fails; what is sealed stays, and the same call continues.
    """
    rank, world_size = resolve_ranks(None, None)
    run_together(lambda: _create(config) if rank == 0 else None)
    if config.engine == "transformers":
        return run_together(lambda: extract(config, share=(rank, world_size)))
    summaries = run_together(lambda: extract_apart(config) if rank == 0 else None)
    return [summary for summary in summaries if summary is not None]


def agreed_ids(stores: Stores) -> list[str]:
    """The ids of the samples that are sealed now, the same list on every rank: rank 0's. Pass it to HiddenStateDataset
    as `sample_ids` while a run is still writing, when ranks that look a moment later see more."""
    rank, _ = resolve_ranks(None, None)
    ids = run_together(lambda: SampleSet(stores).ids if rank == 0 else None)[0]
    assert ids is not None
    return ids


def run_together(work: Callable[[], Result]) -> list[Result]:
    """Run `work` on every rank and return all results by rank. An error on one rank is raised on all: there as it is,
    elsewhere as an EngineError that names the rank."""
    error: Exception | None = None
    result: Result | None = None
    try:
        result = work()
    except Exception as failure:  # noqa: BLE001 - told to the other ranks, then raised
        error = failure
    outcomes = _gather((result, None if error is None else f"{type(error).__name__}: {error}"))
    if error is not None:
        raise error
    for rank, (_, message) in enumerate(outcomes):
        if message is not None:
            raise EngineError(f"rank {rank} failed ({message}); correct it there and start all ranks again")
    return [outcome for outcome, _ in outcomes]


def _gather(outcome: tuple[Result | None, str | None]) -> list[tuple[Result, str | None]]:
    if not (dist.is_available() and dist.is_initialized()):
        return [outcome]  # type: ignore[list-item]
    outcomes: list[tuple[Result, str | None]] = [None] * dist.get_world_size()  # type: ignore[list-item]
    group = dist.new_group(backend="gloo", timeout=_PATIENCE)
    dist.all_gather_object(outcomes, outcome, group)
    dist.destroy_process_group(group)
    return outcomes


def _create(config: Config) -> None:
    """Make the store before several ranks would."""
    info, samples = check_input(config)
    layer_ids = resolve_layers(config.layers, info.num_layers, config.last)
    prepare_store(config.out, make_manifest(config, info, layer_ids, samples))
