"""Small Ray clusters and jobs on them, for tests of replicas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from models import VOCAB

from extractor.config import Config
from extractor.manifest import Manifest
from extractor.samples import write_samples
from extractor.store import Store
from extractor.store.layout import shards
from extractor.store.shard_file import ShardFile

LAYERS = "1,3,5"

ROOT = Path(__file__).resolve().parents[1]
# Workers import the extractor and this folder from here, and never report anywhere.
NODE_ENV = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "RAY_USAGE_STATS_ENABLED": "0"}
OBJECT_STORE_BYTES = 80 << 20  # the least that Ray accepts is 75 MB


@contextmanager
def a_cluster(*nodes):
    """One raylet for each of `nodes` (CPU counts, or dicts of Cluster.add_node), the first is the head; this process
    is not connected. Yields the cluster."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ.update(NODE_ENV)
    cluster = Cluster()
    try:
        for node in nodes:
            options = node if isinstance(node, dict) else {"num_cpus": node}
            cluster.add_node(object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False, **options)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def a_samples_file(path, count, seed=0, shortest=3, longest=100):
    rng = np.random.default_rng(seed)
    rows = [
        {"sample_id": f"s{n}", "input_ids": rng.integers(0, VOCAB, rng.integers(shortest, longest)).tolist()}
        for n in range(count)
    ]
    write_samples(path, rows)
    return path


def start_extract(config, address, *more):
    """The command in a process of its own, as a user starts it."""
    command = [sys.executable, "-m", "extractor", "extract", str(config.samples), "--model", str(config.model)]
    command += ["--out", str(config.out), "--engine", config.engine, "--layers", config.layers]
    command += ["--ray-address", address, "--json", *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def events_of(store):
    """All events of all runs so far, in the order of the runs."""
    lines = [line for file in sorted((store / "runs").glob("*.events.jsonl")) for line in file.open()]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def wait_for_event(store, name, process, count=1, seconds=120):
    """The newest `name` event once there are `count` of them; None when the process ends first."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = [event for event in events_of(store) if event["event"] == name]
        if len(found) >= count:
            return found[-1]
        if process.poll() is not None:
            return None
        time.sleep(0.1)
    raise AssertionError(f"no {name} within {seconds} s: {events_of(store)}")


def config_for(job, out):
    return Config(samples=job.samples, model=job.model, out=out, engine="transformers", layers=LAYERS)


def seal_counts(store):
    """How often each id was sealed, over all shards."""
    fingerprint = Manifest.load(store).fingerprint()
    counts = Counter()
    for folder in shards(store):
        listing = ShardFile(folder).listing(fingerprint)
        ends = np.cumsum(listing.entries["id_bytes"])
        counts.update(
            listing.ids[end - size : end].decode() for end, size in zip(ends, listing.entries["id_bytes"], strict=True)
        )
    return counts


def require_equal(got, want):
    """Same ids, and each sample's bytes alike; with checksums compared on the way."""
    a, b = Store.open(got, check=True), Store.open(want)
    assert set(a) == set(b)
    for name in b:
        np.testing.assert_array_equal(a[name].token_ids, b[name].token_ids)
        np.testing.assert_array_equal(a[name].loss_mask, b[name].loss_mask)
        np.testing.assert_array_equal(a[name].hidden_states.view(np.uint16), b[name].hidden_states.view(np.uint16))
