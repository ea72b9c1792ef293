"""Replicas, nodes and drivers die at random moments, disks fill, processes hang: nothing is lost, nothing doubled."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from models import save_tiny_llama
from ray_cases import (
    LAYERS,
    OBJECT_STORE_BYTES,
    a_cluster,
    a_samples_file,
    config_for,
    events_of,
    require_equal,
    seal_counts,
    start_extract,
    wait_for_event,
)

from extractor.config import Config
from extractor.extraction import extract
from extractor.store import Store
from extractor.store.parts import parts

pytest.importorskip("ray")
HEAD = {"num_cpus": 0}  # it works for nobody: its death is the driver's
NODES = 2
SAMPLES = 1200


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    model = save_tiny_llama(folder / "model")
    samples = a_samples_file(folder / "samples.parquet", SAMPLES)
    config = Config(samples=samples, model=model, out=folder / "single", engine="transformers", layers=LAYERS)
    extract(config)
    return config


class Saboteur:
    """Kills one thing after another while the command runs, and starts the command again when it was the driver."""

    def __init__(self, config, cluster, seed):
        self.config, self.cluster = config, cluster
        self.random = random.Random(seed)
        self.driver = self.start()

    def start(self):
        return start_extract(
            self.config,
            self.cluster.address,
            "--replicas",
            str(NODES),
            "--lease-tokens",
            "4000",
            "--commit-seconds",
            "1",
        )

    def strike(self, kind):
        """Wait until an engine works, then a moment more, then kill. False when the job was done first."""
        known = len([e for e in events_of(self.config.out) if e["event"] == "lease"])
        if wait_for_event(self.config.out, "lease", self.driver, known + 1) is None:
            return False
        time.sleep(self.random.uniform(0, 3))
        if self.driver.poll() is not None:
            return False
        return getattr(self, f"_kill_{kind}")() is not False

    def _kill_replica(self):
        """Some may be between two lives."""
        while not (alive := self._replicas_alive()):
            if self.driver.poll() is not None:
                return False
            time.sleep(0.1)
        os.kill(self.random.choice(alive), signal.SIGKILL)
        return True

    def _replicas_alive(self):
        placed = {e["replica"]: e["pid"] for e in events_of(self.config.out) if e["event"] == "replica-placed"}
        return [pid for pid in placed.values() if Path(f"/proc/{pid}").exists()]

    def _kill_node(self):
        victim = self.random.choice(sorted(self.cluster.worker_nodes, key=str))
        self.cluster.remove_node(victim, allow_graceful=False)
        self.cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)

    def _kill_driver(self):
        self.driver.kill()
        self.driver.communicate()
        self.driver = self.start()

    def finish(self):
        out, err = self.driver.communicate(timeout=400)
        if "no replica is left" in err:  # three deaths of each without a seal in between: a person starts it again
            self.driver = self.start()
            return self.finish()
        assert self.driver.returncode in (0, 3), err
        return json.loads(out)


def require_nothing_lost_or_doubled(config, single, count):
    require_equal(config.out, single)
    counts = seal_counts(config.out)
    assert len(counts) == count
    doubled = {name: times for name, times in counts.items() if times > 1}
    assert not doubled


def kill_and_start_again(job, folder, kinds):
    """Strike once for each of `kinds`, over as many runs as that takes: a fast machine ends a run between two."""
    left, number = list(kinds), 0
    with a_cluster(HEAD, *[1] * NODES) as cluster:
        while left:
            number += 1
            saboteur = Saboteur(config_for(job, folder / f"s{number}"), cluster, seed=number)
            while left and saboteur.strike(left[0]):
                left.pop(0)
            summary = saboteur.finish()
            assert summary["already_stored"] + summary["samples"] == SAMPLES
            require_nothing_lost_or_doubled(saboteur.config, job.out, SAMPLES)


def test_a_replica_a_node_and_the_driver_die(job, tmp_path):
    kill_and_start_again(job, tmp_path, ("replica", "node", "driver"))


@pytest.mark.slow
def test_twenty_kills_at_random_moments(job, tmp_path):
    kill_and_start_again(job, tmp_path, random.Random(1).choices(("replica", "node", "driver"), k=20))


@pytest.mark.slow
def test_a_replica_that_hangs_is_replaced(job, tmp_path):
    config = config_for(job, tmp_path / "s")
    with a_cluster(HEAD, 1, 1) as cluster:
        driver = start_extract(config, cluster.address, "--replicas", "2", "--stall-timeout", "25")
        victim = wait_for_event(config.out, "lease", driver)["replica"]
        pid = next(e["pid"] for e in events_of(config.out) if e["event"] == "replica-placed" and e["replica"] == victim)
        os.kill(pid, signal.SIGSTOP)
        out, err = driver.communicate(timeout=400)
    assert driver.returncode == 0, err
    assert json.loads(out)["deaths"] >= 1
    lost = [e for e in events_of(config.out) if e["event"] == "replica-lost"]
    assert any("stuck" in e["reason"] for e in lost)
    require_nothing_lost_or_doubled(config, job.out, SAMPLES)


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(folder)], check=False)
    if done.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_retires_its_replica(job, tmp_path, small_disk):
    config = config_for(job, tmp_path / "s")
    nodes = [{"num_cpus": 1, "env_vars": {"NVME": str(disk)}} for disk in (small_disk, tmp_path / "large")]
    with a_cluster(HEAD, *nodes) as cluster:
        driver = start_extract(config, cluster.address, "--replicas", "2", "--shard-dir", "$NVME/shards", "--force")
        out, err = driver.communicate(timeout=400)
    assert driver.returncode == 3, err
    summary = json.loads(out)
    (retired,) = [replica for replica in summary["replicas"] if replica["retired"]]
    assert "no room to write" in retired["reason"]
    assert str(small_disk) in retired["reason"]
    assert summary["samples"] == SAMPLES
    assert {part.path.parent for part in parts(config.out)} == {small_disk / "shards", tmp_path / "large" / "shards"}
    require_equal(config.out, job.out)
    assert len(Store.open(config.out)) == SAMPLES
