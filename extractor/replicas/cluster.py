"""The Ray cluster: connecting, room for replicas, and work that must run on one host."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from extractor.errors import ClusterError, ExtractorError
from extractor.replicas.options import ReplicaOptions
from extractor.replicas.replica import Replica

_KNOCK_SECONDS = 10.0
_CALLS_AT_ONCE = 4  # of one replica: a report may wait while another call comes in


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Join the cluster; a connection that the embedding program has made is used and left open."""
    if ray.is_initialized():
        yield
        return
    try:
        _knock(address)
        ray.init(
            address=None if address == "local" else address,
            namespace="extractor",
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=False if address == "local" else None,
        )
    except (OSError, RayError, ValueError, RuntimeError) as error:
        raise ClusterError(
            f"no Ray cluster answers at --ray-address {address} ({error}); start one with `ray start --head`, name "
            "another address, or pass --ray-address local"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Where nobody listens, Ray itself would try for minutes before it ends the process. Raises OSError."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one replica occupies, all of it on one node."""

    gpus: int
    cpus: int

    @classmethod
    def of(cls, options: ReplicaOptions, tp: int) -> Share:
        gpus = options.gpus_per_replica
        if gpus < 0:
            gpus = tp if ray.cluster_resources().get("GPU", 0) else 0
        if 0 < gpus < tp:
            raise ClusterError(f"--gpus-per-replica is {gpus}, but --tp {tp} needs one GPU a rank; pass {tp} or more")
        return cls(gpus=gpus, cpus=options.cpus_per_replica)

    def place(self, name: str) -> PlacementGroup:
        """Ask for a place; `.ready()` of it tells when it is there."""
        bundle = {"CPU": float(self.cpus)} | ({"GPU": float(self.gpus)} if self.gpus else {})
        return placement_group([bundle], strategy="STRICT_PACK", name=name)

    def start(self, group: PlacementGroup) -> Any:
        """A replica in its place; it is not restarted by Ray, as the driver must return its lease first."""
        return (
            ray.remote(Replica)
            .options(
                num_cpus=self.cpus,
                num_gpus=self.gpus,
                max_concurrency=_CALLS_AT_ONCE,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
            )
            .remote()
        )

    def fits(self, resources: dict[str, float]) -> int:
        """How many replicas a node with these resources holds."""
        by_cpu = resources.get("CPU", 0) / self.cpus
        by_gpu = resources.get("GPU", 0) / self.gpus if self.gpus else math.inf
        return int(min(by_cpu, by_gpu))

    def __str__(self) -> str:
        return f"{self.gpus} GPUs and {self.cpus} CPUs on one node"


def release(group: PlacementGroup | None, actor: Any) -> None:
    """End a replica at once and free its place."""
    if actor is not None:
        ray.kill(actor)
    if group is not None:
        remove_placement_group(group)


def alive_nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def too_little_room(wanted: int, placed: int, share: Share) -> ClusterError:
    """Says what is missing, node by node."""
    nodes = alive_nodes()
    room = {f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})": node["Resources"] for node in nodes}
    listed = ", ".join(
        f"{name}: {r.get('GPU', 0):g} GPUs, {r.get('CPU', 0):g} CPUs, holds {share.fits(r)}" for name, r in room.items()
    )
    free = ray.available_resources()
    holds = sum(share.fits(r) for r in room.values())
    why = "others use part of it" if holds >= wanted else f"{wanted - holds} more do not fit"
    return ClusterError(
        f"only {placed} of {wanted} replicas found room, each needing {share}; the cluster has {listed}; {why} (free "
        f"now: {free.get('GPU', 0):g} GPUs, {free.get('CPU', 0):g} CPUs); pass --replicas {max(holds, 1)} or less, add "
        "nodes, or raise --placement-timeout for a cluster that grows"
    )


def task_on_host(host: str, function: Callable[..., Any]) -> Any:
    """`function` as a Ray task that runs on a node of `host`. Raises ClusterError when the cluster has none."""
    node = next((node for node in alive_nodes() if node["NodeManagerHostname"] == host), None)
    if node is None:
        raise ClusterError(f"host {host} is not in the Ray cluster; start Ray there and run the same command again")
    where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return ray.remote(function).options(num_cpus=0, max_retries=2, scheduling_strategy=where)


def run_on_host(host: str, function: Callable[..., Any], *args: Any, timeout: float) -> Any:
    """Call `function` on a node of `host`. Raises ClusterError when there is none, or it does not answer, and the
    function's own ExtractorError kinds."""
    task = task_on_host(host, function)
    try:
        return ray.get(task.remote(*args), timeout=timeout)
    except RayTaskError as error:
        if isinstance(error.cause, ExtractorError):
            raise error.cause from error
        raise
    except (RayError, TimeoutError) as error:
        raise ClusterError(f"host {host} did not answer: {error}; check the node and run the command again") from error
