"""The parts of a replica run that need no cluster: inspection, inbox, seals, one replica by itself."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from models import save_tiny_llama
from ray_cases import a_samples_file
from store_cases import a_manifest, a_store, add

from extractor.config import Config
from extractor.engines.load import engine_class
from extractor.errors import ClusterError, InputError, UsageError
from extractor.job_setup import check_input, make_job, make_manifest
from extractor.replicas.canary import Canary
from extractor.replicas.inbox import Inbox
from extractor.replicas.member import Member, speed_share
from extractor.replicas.messages import Delivery, Failure, NodeReport, Task
from extractor.replicas.node import check_node, inspect_node, remove_tokens, require_answer, versions
from extractor.replicas.options import ReplicaOptions
from extractor.replicas.replica import Replica
from extractor.replicas.run import extract_on_replicas
from extractor.replicas.seals import SealReader
from extractor.replicas.source import SampleSource
from extractor.samples import SamplesFile
from extractor.store import Store, prepare_store
from extractor.store.parts import first_shard_number
from extractor.weights import weights_hash

LAYERS = "1,3,5"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replica")
    model = save_tiny_llama(folder / "model")
    samples = a_samples_file(folder / "samples.parquet", 12)
    return Config(samples=samples, model=model, out=folder / "out", engine="transformers", layers=LAYERS)


def a_report(**changes):
    now = time.time()
    fields = {
        "host": "node7",
        "node_id": "abcdef0123",
        "pid": 1,
        "clock": now,
        "versions": {"extractor": "1", "model config": "m"},
        "shard_dir": None,
        "sees_token": True,
        "problem": None,
    }
    return NodeReport(**{**fields, **changes}), now


def test_alike_nodes_are_accepted():
    report, now = a_report()
    check_node(report, {"extractor": "1", "model config": "m"}, now - 1, now + 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"versions": {"extractor": "2", "model config": "m"}},
            r"node7 \(abcdef01\) has another extractor .* 2 there, 1 here",
        ),
        ({"versions": {"extractor": "1"}}, "another model config"),
        ({"problem": "no model folder"}, "node7.*can't take part: no model folder"),
        ({"sees_token": False}, "node7.*does not see the store.*--shard-dir"),
    ],
)
def test_a_node_that_differs_is_named(changes, message):
    report, now = a_report(**changes)
    with pytest.raises(ClusterError, match=message):
        check_node(report, {"extractor": "1", "model config": "m"}, now - 1, now + 1)


@pytest.mark.parametrize(("offset", "word"), [(100, "ahead"), (-100, "behind")])
def test_a_clock_that_differs_is_refused(offset, word):
    report, now = a_report(versions={}, clock=time.time() + offset)
    with pytest.raises(ClusterError, match=rf"clock of node node7.* is (99|100) s {word}"):
        check_node(report, {}, now - 0.5, now + 0.5)
    check_node(report, {}, now - 200, now + 200)  # a slow answer is no wrong clock


def test_inspection_finds_what_the_driver_has(config, tmp_path):
    report = inspect_node(config, "n", None, str(tmp_path / "shards"))
    assert report.problem is None
    assert report.versions == versions(config)
    assert report.shard_dir == tmp_path / "shards"
    assert (tmp_path / "shards").is_dir()


def test_inspection_puts_the_nodes_variables_in(config, tmp_path, monkeypatch):
    monkeypatch.setenv("NVME", str(tmp_path))
    assert inspect_node(config, "n", None, "$NVME/x").shard_dir == tmp_path / "x"
    monkeypatch.delenv("NVME")
    assert "absolute path" in inspect_node(config, "n", None, "$NVME/x").problem


def test_inspection_reports_a_missing_model(config):
    report = inspect_node(replace(config, model=config.model / "none"), "n", None, "")
    assert "does not exist" in report.problem


def test_weights_that_differ_in_one_byte_differ(config, tmp_path):
    model = save_tiny_llama(tmp_path / "copy")
    assert weights_hash(model) == weights_hash(config.model)
    file = model / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert weights_hash(model) != weights_hash(config.model)


def test_a_shared_folder_answers_and_another_does_not(config, tmp_path):
    token = tmp_path / ".driver-1"
    assert not inspect_node(config, "n", token, "").sees_token
    token.touch()
    report = inspect_node(config, "n", token, "")
    require_answer(token, report)
    with pytest.raises(ClusterError, match="does not arrive here"):
        require_answer(token, replace(report, host="other"))
    remove_tokens(token)
    assert list(tmp_path.iterdir()) == []


def test_the_inbox_asks_one_lease_ahead():
    inbox = Inbox()
    assert inbox.hungry
    inbox.add(["a", "b"])
    assert not inbox.hungry
    stream = inbox.samples()
    assert next(stream) == "a"
    assert inbox.hungry
    inbox.add(["c"])
    inbox.nothing_more()
    assert list(stream) == ["b", "c"]
    assert inbox.idle
    inbox.add(["d"])
    assert not inbox.idle
    assert inbox.wait()
    assert next(inbox.samples()) == "d"


def test_a_stop_drops_what_is_not_begun():
    inbox = Inbox()
    inbox.add(["a"])
    stream = inbox.samples()
    next(stream)
    inbox.add(["b"])
    inbox.stop()
    assert list(stream) == []
    assert not inbox.wait()


def test_a_late_lease_is_waited_for():
    inbox = Inbox()
    timer = threading.Timer(0.1, inbox.add, [["late"]])
    timer.start()
    assert next(inbox.samples()) == "late"
    timer.join()


def test_the_source_gives_rows_again_until_they_are_dropped(config):
    samples = SamplesFile(config.samples)
    want = list(samples)
    source = SampleSource(samples)
    assert [s.sample_id for s in source.fetch([1, 3])] == ["s1", "s3"]
    for got, row in zip(source.fetch([3, 7]), [3, 7], strict=True):
        np.testing.assert_array_equal(got.token_ids, want[row].token_ids)
    source.drop([3])
    with pytest.raises(AssertionError):
        source.fetch([3])


def test_seals_of_one_run_are_told_once(tmp_path):
    store = a_store(tmp_path / "s", {"old": 3}).path
    add(store, {"a": 5, "b": 2}, a_manifest(), run_id="x-r1.0-1")
    add(store, {"c": 5}, a_manifest(), run_id="x-r1.01-1")
    reader = SealReader(store, "x-r1.0")
    assert [(s.sample_id, s.tokens) for s in reader.new()] == [("a", 5), ("b", 2)]
    assert reader.new() == []
    add(store, {"d": 4}, a_manifest(), run_id="x-r1.0-2")
    assert [s.sample_id for s in reader.new()] == ["d"]


def test_shares_follow_speed():
    fast, slow, new = Member(0), Member(1), Member(2)
    fast.tokens, fast.working_seconds = 900, 1.0
    slow.tokens, slow.working_seconds = 300, 1.0
    assert speed_share(fast, [fast, slow]) == 0.75
    assert speed_share(new, [fast, slow, new]) == pytest.approx(1 / 3)


def a_task(config, out, first_shard=None):
    info, samples = check_input(config)
    manifest = make_manifest(config, info, (1, 3, 5), samples)
    job = make_job(config, info, (1, 3, 5), set(samples.sample_ids))
    return Task(config=config, job=job, manifest=manifest, longest=100).of("run-r0.0", out, first_shard), list(samples)


def drive(replica, leases):
    """What a driver does; returns the reported samples and the last report."""
    sealed, delivery = [], Delivery()
    while True:
        report = replica.exchange(delivery, 1.0)
        sealed += report.sealed
        if report.finished or report.failure:
            return sealed, report
        delivery = Delivery()
        if report.hungry or report.idle:
            lease = leases.pop(0) if leases else None
            delivery = Delivery(lease=tuple(lease)) if lease else Delivery(nothing_more=True, stop=report.idle)


def test_a_replica_by_itself_seals_its_leases(config, tmp_path):
    task, samples = a_task(config, tmp_path / "part", first_shard=30_000)
    replica = Replica()
    assert replica.load(task) is None
    sealed, report = drive(replica, [samples[:5], samples[5:]])
    assert report.failure is None
    got = sorted((s.sample_id, s.tokens) for s in sealed)
    assert got == sorted((s.sample_id, s.token_ids.size) for s in samples)
    store = Store.open(tmp_path / "part", check=True)
    assert store.shards[0].name == "shard-30000"
    assert set(store) == {s.sample_id for s in samples}
    assert first_shard_number(tmp_path / "part") == 30_000
    assert (report.findings, report.restarts) == ([], 0)


def test_the_canary_tells_an_engine_that_changed(config, tmp_path):
    task, samples = a_task(config, tmp_path / "s")
    prepare_store(tmp_path / "s", task.manifest)
    (tmp_path / "s" / "runs").mkdir()
    engine = engine_class("transformers")(config, 100)
    canary = Canary(size=4)
    engine.run(task.job, canary.watched(iter(samples)), lambda progress: None, lambda: False)
    assert len({sample.sample_id for sample in canary.kept}) == 4
    assert canary.check(engine, task) == []
    canary.wanted = True
    assert canary.check(engine, task) == []
    with torch.no_grad():
        engine._reader._layers[0].mlp.down_proj.weight.mul_(3)
    found = canary.check(engine, task)
    assert {finding["kind"] for finding in found} == {"canary"}
    assert {finding["sample_id"] for finding in found} == {sample.sample_id for sample in canary.kept}


def test_a_lease_after_the_end_starts_another_run(config, tmp_path):
    task, samples = a_task(config, tmp_path / "s")
    prepare_store(tmp_path / "s", task.manifest)
    replica = Replica()
    assert replica.load(task) is None
    assert replica.exchange(Delivery(), 1.0).hungry
    report = replica.exchange(Delivery(lease=tuple(samples[:2]), nothing_more=True), 0.1)
    sealed = list(report.sealed)
    while not report.idle:
        report = replica.exchange(Delivery(), 0.1)
        sealed += report.sealed
    assert len(sealed) == 2
    more, report = drive(replica, [samples[2:4]])
    assert sorted(s.sample_id for s in more) == ["s2", "s3"]
    assert {shard.run_id for shard in Store.open(tmp_path / "s").shards} == {"run-r0.0-1", "run-r0.0-2"}


def test_a_replica_that_can_not_load_says_why(config, tmp_path):
    task, _ = a_task(config, tmp_path / "s", first_shard=0)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_bytes((config.model / "config.json").read_bytes())
    (tmp_path / "bad" / "model.safetensors").write_bytes(b"not weights")
    failure = Replica().load(replace(task, config=replace(config, model=tmp_path / "bad")))
    assert failure.kind == "engine"
    assert "could not load" in failure.message


def test_failures_are_sorted_by_whose_matter_they_are():
    assert Failure.of(InputError("x"), "").kind == "job"
    assert Failure.of(ValueError(), "trace").message == "trace"


@pytest.mark.parametrize(
    ("change", "flag"),
    [({"replicas": -1}, "--replicas"), ({"shard_dir": "x"}, "--shard-dir"), ({"stall_timeout": 0}, "--stall-timeout")],
)
def test_options_out_of_range(change, flag):
    with pytest.raises(UsageError, match=flag):
        ReplicaOptions(**change)


def test_options_that_need_replicas_are_refused_without():
    with pytest.raises(UsageError, match=r"^--shard-dir, --lease-tokens would do nothing without --replicas"):
        ReplicaOptions(shard_dir="/nvme", lease_tokens=5)
    assert ReplicaOptions(replicas=1, shard_dir="/nvme", lease_tokens=5).lease_tokens == 5
    assert ReplicaOptions().replicas == 0


def test_ray_missing(config, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ClusterError, match=r'pip install "hidden-state-extractor\[ray\]"'):
        extract_on_replicas(config, ReplicaOptions(replicas=2))


def test_without_replicas_ray_is_not_imported(config, tmp_path):
    code = (
        "import sys; from extractor.cli import main;"
        f"code = main(['extract', {str(config.samples)!r}, '--model', {str(config.model)!r},"
        f"'--engine', 'transformers', '--layers', '1,3,5', '--out', {str(tmp_path / 'o')!r}]);"
        "sys.exit(9 if 'ray' in sys.modules else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
