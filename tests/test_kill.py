"""A run that is killed or interrupted, again and again, ends with the same bytes as one that was not."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time

import pytest
from jobs import config, store_bits, write_random_samples
from models import save_tiny_llama

from extractor.extraction import extract
from extractor.store import Store

KILLS = 10
LENGTHS = [1 + (37 * i) % 128 for i in range(300)]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kill")
    return save_tiny_llama(folder / "model"), write_random_samples(folder / "samples.parquet", LENGTHS)


@pytest.fixture(scope="module")
def uninterrupted(job, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "store"
    extract(config(*job, out))
    return store_bits(out)


@pytest.fixture(scope="module")
def processes():
    """Children that start with torch and transformers imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["extractor.engines.transformers", "extractor.extraction", "transformers.models.llama.modeling_llama"]
    )
    return context


def _child(options, ready):
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it lives as long as the process
    summary = extract(options, lambda progress, samples, tokens: ready.set())
    sys.exit(summary.exit_code)


def _start(processes, options):
    ready = processes.Event()
    child = processes.Process(target=_child, args=(options, ready))
    child.start()
    assert ready.wait(120)
    return child


def _kill_somewhere(child, out, rng):
    """SIGKILL the child at once, at any time, or soon after its first commit; returns how many samples are sealed."""
    before = len(Store.open(out))
    moment = rng.choice(["at once", "any time", "after a commit"])
    if moment == "after a commit":
        while child.is_alive() and len(Store.open(out)) == before:
            time.sleep(0.005)
    if moment != "at once":
        time.sleep(rng.uniform(0.0, 0.2))
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    return len(Store.open(out))


def test_sigkill_at_random_moments(job, uninterrupted, processes, tmp_path):
    options = config(*job, tmp_path / "store")
    rng = random.Random(0)
    seen_partial = 0
    for _ in range(KILLS):
        sealed = _kill_somewhere(_start(processes, options), options.out, rng)
        seen_partial += 0 < sealed < len(LENGTHS)
    extract(options)
    assert store_bits(options.out) == uninterrupted
    assert seen_partial, "no kill hit the run between its first and its last sample"


def test_interrupt_seals_what_is_whole_and_can_be_continued(job, uninterrupted, processes, tmp_path):
    options = config(*job, tmp_path / "store")
    child = _start(processes, options)
    os.kill(child.pid, signal.SIGINT)
    child.join()
    assert child.exitcode == 130
    before = store_bits(options.out)
    assert len(before) < len(LENGTHS)
    summary = extract(options)
    assert summary.already_stored == len(before)
    assert summary.samples == len(LENGTHS) - len(before)
    after = store_bits(options.out)
    assert after == uninterrupted
    assert all(after[sample_id] == bits for sample_id, bits in before.items())


def test_a_second_run_computes_nothing(job, processes, tmp_path, monkeypatch):
    samples = write_random_samples(tmp_path / "few.parquet", [3, 5])
    options = config(job[0], samples, tmp_path / "store")
    extract(options)
    shards = sorted(os.listdir(options.out))
    monkeypatch.setattr("extractor.extraction.engine_class", lambda name: pytest.fail("an engine was loaded"))
    summary = extract(options)
    assert (summary.samples, summary.already_stored, summary.exit_code) == (0, 2, 0)
    assert sorted(os.listdir(options.out)) == shards
