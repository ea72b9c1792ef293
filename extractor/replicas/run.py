"""`extract` over many nodes: the same store, filled by replicas on a Ray cluster."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from extractor.config import Config
from extractor.disk import require_room
from extractor.errors import ClusterError
from extractor.job_setup import check_input, disk_bytes, make_job, make_manifest
from extractor.layers import resolve_layers
from extractor.manifest import Manifest
from extractor.model_info import ModelInfo
from extractor.replicas.options import ReplicaOptions
from extractor.samples import SamplesFile
from extractor.store import prepare_store
from extractor.store.lock import RunLock
from extractor.summary import Summary, nothing_to_do

if TYPE_CHECKING:
    from extractor.replicas.cluster import Share
    from extractor.replicas.status import Status

Show = Callable[["Status"], None]


def extract_on_replicas(config: Config, options: ReplicaOptions, show: Show | None = None) -> Summary:
    """As `extract`, by `options.replicas` engines on the cluster; `show` is called every few seconds.

    Raises ClusterError for a cluster without room or with nodes that differ, and what `extract` raises. The driver
    keeps nothing that the shards do not tell: killed at any moment, the same call continues.
    """
    require_ray()
    from extractor.replicas.cluster import Share, connected
    from extractor.replicas.driver import run_job

    with connected(options.ray_address):
        share = Share.of(options, config.tp)
        info, samples = check_input(config)
        config = _same_everywhere(config, info, share)
        layer_ids = resolve_layers(config.layers, info.num_layers, config.last)
        manifest = make_manifest(config, info, layer_ids, samples)
        todo = _remaining(config, options, manifest, samples)
        if not todo:
            return nothing_to_do(config.out, len(samples))
        job = make_job(config, info, layer_ids, todo)
        if not options.shard_dir:
            require_room(config.out, disk_bytes(job, len(todo)), config.force)
        with RunLock(config.out, shared=False):
            # Only now is the store this run's: another one may have made it, or filled it, in the meantime.
            todo = _remaining(config, options, manifest, samples)
            if not todo:
                return nothing_to_do(config.out, len(samples))
            return run_job(config, options, share, make_job(config, info, layer_ids, todo), samples, todo, show)


def require_ray() -> None:
    """Raise ClusterError when Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ClusterError(
            '--replicas needs Ray, which is not installed; pip install "hidden-state-extractor[ray]" on every node'
        )


def _same_everywhere(config: Config, info: ModelInfo, share: Share) -> Config:
    """Absolute paths, and a dtype that does not depend on whether the driver's own machine has a GPU."""
    dtype = config.compute_dtype
    if dtype == "auto":
        dtype = info.dtype if share.gpus else "float32"
    return replace(
        config,
        samples=config.samples.absolute(),
        model=config.model.absolute(),
        out=config.out.absolute(),
        compute_dtype=dtype,
    )


def _remaining(config: Config, options: ReplicaOptions, manifest: Manifest, samples: SamplesFile) -> set[str]:
    from extractor.replicas.places import stored_ids

    prepare_store(config.out, manifest)
    (config.out / "runs").mkdir(exist_ok=True)
    stored = stored_ids(config.out, skip_lost=options.recompute_lost)
    return {sample_id for sample_id in samples.sample_ids if sample_id not in stored}
