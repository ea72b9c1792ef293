"""Replicas on real Ray clusters of several raylets on this machine: the store must equal a single run's."""

from __future__ import annotations

import os
import shutil

import pytest
from models import save_tiny_llama
from ray_cases import LAYERS, ROOT, a_cluster, a_samples_file, config_for, require_equal, seal_counts

from extractor.config import Config
from extractor.errors import ClusterError
from extractor.extraction import extract
from extractor.replicas.options import ReplicaOptions
from extractor.replicas.run import extract_on_replicas
from extractor.store.parts import parts

pytest.importorskip("ray")
FAST = {"stall_timeout": 120.0, "placement_timeout": 60.0, "lease_tokens": 3000}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """(model folder, samples file, the store of a single run)."""
    folder = tmp_path_factory.mktemp("replicas")
    model = save_tiny_llama(folder / "model")
    samples = a_samples_file(folder / "samples.parquet", 400)
    config = Config(samples=samples, model=model, out=folder / "single", engine="transformers", layers=LAYERS)
    extract(config)
    return config


@pytest.fixture(scope="module")
def cluster():
    with a_cluster(1, 1, 2) as cluster:
        yield cluster


@pytest.mark.parametrize(
    "replicas", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
def test_the_store_equals_a_single_runs(job, cluster, tmp_path, replicas):
    seen = []
    options = ReplicaOptions(replicas=replicas, ray_address=cluster.address, **FAST)
    summary = extract_on_replicas(config_for(job, tmp_path / "s"), options, seen.append)
    require_equal(tmp_path / "s", job.out)
    assert set(seal_counts(tmp_path / "s").values()) == {1}
    assert summary.exit_code == 0
    assert summary.samples == 400
    assert sum(r.samples for r in summary.replicas) == 400
    assert sum(r.samples > 0 for r in summary.replicas) >= min(2, replicas), "a late replica may find nothing left"
    assert seen[-1].tokens == seen[-1].total_tokens == summary.tokens
    again = extract_on_replicas(config_for(job, tmp_path / "s"), options)
    assert (again.samples, again.already_stored) == (0, 400)


def test_nodes_write_to_their_own_disks(job, cluster, tmp_path):
    options = ReplicaOptions(replicas=2, ray_address=cluster.address, shard_dir=str(tmp_path / "nvme"), **FAST)
    summary = extract_on_replicas(config_for(job, tmp_path / "s"), options)
    assert summary.exit_code == 0
    listed = parts(tmp_path / "s")
    assert len(listed) == 2
    assert {part.host for part in listed} == {os.uname().nodename}
    assert {part.path.parent for part in listed} == {tmp_path / "nvme"}
    assert not list((tmp_path / "s").glob("shard-*"))
    require_equal(tmp_path / "s", job.out)


def test_more_replicas_than_room(job, cluster, tmp_path):
    options = ReplicaOptions(replicas=6, ray_address=cluster.address, placement_timeout=4.0)
    with pytest.raises(ClusterError, match=r"only 4 of 6 replicas found room.* 2 more do not fit.*--replicas 4"):
        extract_on_replicas(config_for(job, tmp_path / "s"), options)


def test_more_gpus_than_there_are(job, cluster, tmp_path):
    options = ReplicaOptions(replicas=1, ray_address=cluster.address, gpus_per_replica=8, placement_timeout=2.0)
    with pytest.raises(ClusterError, match=r"only 0 of 1.*each needing 8 GPUs.*holds 0"):
        extract_on_replicas(config_for(job, tmp_path / "s"), options)


def test_a_node_with_another_extractor(job, tmp_path, monkeypatch):
    """One node imports a copy of the sources with a line more. Workers look in the driver's folder first."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "extractor", tmp_path / "other" / "extractor")
    with (tmp_path / "other" / "extractor" / "errors.py").open("a") as file:
        file.write("# another release\n")
    odd = {"num_cpus": 1, "env_vars": {"PYTHONPATH": f"{tmp_path / 'other'}:{ROOT / 'tests'}"}}
    with a_cluster(1, odd) as cluster:
        options = ReplicaOptions(replicas=2, ray_address=cluster.address)
        with pytest.raises(ClusterError, match=r"node .* has another extractor than the driver: .* install the same"):
            extract_on_replicas(config_for(job, tmp_path / "s"), options)
    assert not list((tmp_path / "s").glob("shard-*"))


def test_no_cluster_at_the_address(job, tmp_path):
    options = ReplicaOptions(replicas=1, ray_address="127.0.0.1:1")
    with pytest.raises(ClusterError, match=r"no Ray cluster answers at --ray-address 127\.0\.0\.1:1"):
        extract_on_replicas(config_for(job, tmp_path / "s"), options)
