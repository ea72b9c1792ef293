"""A launcher on two CPU ranks: extraction by both, training that shares the samples, resuming, failing together."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from models import VOCAB, save_tiny_llama  # noqa: E402

from extractor import Config, HiddenStateDataset  # noqa: E402
from extractor.errors import EngineError, InputError, StoreError, UsageError  # noqa: E402
from extractor.extract_apart import _environment, extract_apart  # noqa: E402
from extractor.launch import agreed_ids, run_together  # noqa: E402
from extractor.samples import write_samples  # noqa: E402
from extractor.store import Store  # noqa: E402
from extractor.store.lock import RunLock  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
LINE = re.compile(r"rank (\d) epoch (\d) step (\d+) loss ([\d.]+) ids \[(.*)\]")


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, check=False)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launch")
    save_tiny_llama(folder / "model", num_layers=8)
    rng = np.random.default_rng(0)
    rows = [
        {
            "sample_id": f"s{n}",
            "input_ids": rng.integers(0, VOCAB, int(length)).tolist(),
            "loss_mask": [1] * int(length),
        }
        for n, length in enumerate(rng.integers(5, 60, 24))
    ]
    write_samples(folder / "samples.parquet", rows)
    return folder


def train(job, checkpoint, *more):
    return torchrun(
        "examples/train_on_ranks.py",
        str(job / "samples.parquet"),
        *("--model", str(job / "model"), "--store", str(job / "store"), "--checkpoint", str(job / checkpoint)),
        *("--token-budget", "128", "--checkpoint-every", "2", "--lr", "0.01", *more),
    )


def steps(output):
    """{(rank, epoch, step): (loss, ids)}"""
    found = {}
    for rank, epoch, step, loss, ids in LINE.findall(output):
        found[int(rank), int(epoch), int(step)] = (float(loss), tuple(re.findall(r"'(\w+)'", ids)))
    return found


@pytest.fixture(scope="module")
def whole(job):
    done = train(job, "whole.pt", "--epochs", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    return steps(done.stdout)


def test_both_ranks_extract_and_share_every_epoch(job, whole):
    shards = [path for path in (job / "store").glob("shard-*") if path.is_dir()]
    assert len(shards) >= 2
    assert len(Store.open(job / "store", check=True)) == 24
    for epoch in (0, 1):
        counts = [sum(1 for r, e, _ in whole if (r, e) == (rank, epoch)) for rank in (0, 1)]
        assert counts[0] == counts[1] > 2
        seen = sorted(name for (_, e, _), (_, ids) in whole.items() if e == epoch for name in ids)
        assert seen == sorted(f"s{n}" for n in range(24))


def test_the_loss_falls(whole):
    losses = [loss for (rank, _, _), (loss, _) in sorted(whole.items(), key=lambda item: item[0][2]) if rank == 0]
    assert losses[-1] < 0.7 * losses[0]


def test_a_stopped_run_goes_on_at_the_batch(job, whole):
    """One epoch, then the second from its checkpoint: the same batches and the same losses as in one go."""
    first = train(job, "parts.pt", "--epochs", "1")
    assert first.returncode == 0, first.stderr[-3000:]
    state = torch.load(job / "parts.pt", weights_only=True)
    second = train(job, "parts.pt", "--epochs", "2")
    assert second.returncode == 0, second.stderr[-3000:]
    resumed = steps(second.stdout)
    assert min(step for _, _, step in resumed) == state["step"] + 1
    assert {key: whole[key] for key in resumed} == resumed
    assert set(whole) == set(resumed) | set(steps(first.stdout))


def test_an_error_ends_all_ranks(job, tmp_path):
    done = train(tmp_path, "x.pt")
    assert done.returncode != 0
    assert "model" in done.stderr
    assert "does not exist" in done.stderr


def test_one_rank_is_enough(job, whole):
    assert run_together(lambda: 7) == [7]
    assert sorted(agreed_ids(job / "store")) == sorted(f"s{n}" for n in range(24))
    with pytest.raises(ZeroDivisionError):
        run_together(lambda: 1 // 0)


def test_ranks_that_do_not_know_each_other_are_refused(job, monkeypatch):
    """Each would extract, and train on, everything."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for call in (lambda: agreed_ids(job / "store"), lambda: HiddenStateDataset(job / "store", token_budget=64)):
        with pytest.raises(UsageError, match=r"2 processes .*init_process_group"):
            call()
    HiddenStateDataset(job / "store", token_budget=64, rank=1, world_size=2)


def test_an_error_on_another_rank_is_told(monkeypatch):
    monkeypatch.setattr("extractor.launch._gather", lambda mine: [mine, (None, "StoreError: it is gone")])
    with pytest.raises(EngineError, match=r"rank 1 failed \(StoreError: it is gone\)"):
        run_together(lambda: 7)


def test_the_same_with_vllm(job, whole, tmp_path):
    """vLLM takes torch.distributed's group for its own where it finds one, hangs, and destroys it in the end."""
    pytest.importorskip("vllm")
    for name in ("model", "samples.parquet"):
        (tmp_path / name).symlink_to(job / name)
    done = train(tmp_path, "whole.pt", "--epochs", "2", "--engine", "vllm")
    assert done.returncode == 0, done.stderr[-3000:]
    seen = sorted(name for _, ids in steps(done.stdout).values() for name in ids)
    assert seen == sorted(name for _, ids in whole.values() for name in ids)
    first, second = Store.open(job / "store"), Store.open(tmp_path / "store")
    assert set(first) == set(second)
    for sample_id in first:
        a, b = (np.asarray(store[sample_id].hidden_states, np.float32) for store in (first, second))
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3 * np.abs(a).max())


def test_vllm_is_refused_inside_a_group(monkeypatch):
    pytest.importorskip("vllm")
    from extractor.engines.vllm import engine

    monkeypatch.setattr(engine.dist, "is_initialized", lambda: True)
    with pytest.raises(EngineError, match="torch.distributed is initialized.*extract_on_ranks"):
        engine.VllmEngine(Config(samples="s", model="m", out="o"), 1)


def test_an_extraction_apart_has_its_errors_and_none_of_the_launchers_variables(job, tmp_path, monkeypatch):
    options = {"samples": job / "samples.parquet", "out": tmp_path / "store", "engine": "transformers"}
    with pytest.raises(InputError, match="no-model does not exist"):
        extract_apart(Config(model=tmp_path / "no-model", **options))
    monkeypatch.setenv("RANK", "3")
    assert "RANK" not in _environment()
    assert extract_apart(Config(model=job / "model", **options)).samples == 24


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_an_extraction_apart_ends_with_its_parent(job, tmp_path, sent):
    """It would hold its GPUs, and write, for nobody. A terminal's Ctrl-C reaches all processes of its group, and must
    not count twice."""
    lengths = [40] * 3000
    write_samples(tmp_path / "s.parquet", [{"sample_id": f"s{n}", "input_ids": [1] * k} for n, k in enumerate(lengths)])
    code = (
        "from extractor import Config; from extractor.extract_apart import extract_apart; import sys; "
        "extract_apart(Config(samples=sys.argv[1], model=sys.argv[2], out=sys.argv[3], engine='transformers', "
        "commit_seconds=0.1))"
    )
    store = tmp_path / "store"
    arguments = [str(tmp_path / "s.parquet"), str(job / "model"), str(store)]
    parent = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT, process_group=0)
    while not list(store.glob("shard-*/data.mdb")) or not len(Store.quietly(store)):
        assert parent.poll() is None
        time.sleep(0.05)
    os.killpg(parent.pid, sent)
    parent.wait()
    while is_in_use(store):
        time.sleep(0.05)
    assert 0 < len(Store.open(store)) < len(lengths)
    (record,) = (store / "runs").glob("*.json")
    assert json.loads(record.read_text())["interrupted"]


def is_in_use(store):
    try:
        with RunLock(store, shared=False):
            return False
    except StoreError:
        return True
