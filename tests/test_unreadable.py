"""Shards that can't be opened or read: a loader never trains quietly on fewer samples than the store has."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from contextlib import contextmanager, suppress

import pytest
from store_samples import a_manifest, assert_same_rows, rows_of, write_samples
from torch.utils.data import DataLoader

from extractor.cli import main
from extractor.errors import InputError, OpenFilesError, StoreError
from extractor.integrity import check_store
from extractor.loader import HiddenStateDataset, HiddenStateSamples
from extractor.repair import repair
from extractor.store import Store, prepare_store
from extractor.store.parts import Part, add_part

SHARDS = 6
SAMPLES = {f"x{number}": rows_of(number, 5, a_manifest()) for number in range(SHARDS)}


@pytest.fixture
def path(tmp_path):
    path = prepare_store(tmp_path / "s", a_manifest()).path
    for name, rows in SAMPLES.items():
        write_samples(path, {name: rows}, run_id=f"r-{name}")
    return path


@contextmanager
def room_for(descriptors):
    """Only so many further files may be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1 + descriptors, hard))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(descriptors):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)


def cut_off(path, name):
    """Leave nothing of the shard's data file but its first bytes."""
    os.truncate(path / name / "data.mdb", 100)


def test_too_few_descriptors_make_no_smaller_store(path):
    with room_for(4), pytest.raises(OpenFilesError, match=r"this process may have \d.* files open.*`ulimit -n \d+`"):
        Store.quietly(path)
    with room_for(4), pytest.raises(OpenFilesError):
        check_store(path)
    with room_for(SHARDS + 1):
        assert len(Store.open(path)) == SHARDS


def test_a_system_out_of_descriptors_is_named(path, monkeypatch):
    def full(*_arguments):
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    monkeypatch.setattr("extractor.store.opening.os.open", full)
    with pytest.raises(OpenFilesError, match=r"whole system.*fs\.file-max, not `ulimit -n`"):
        Store.quietly(path)


@pytest.mark.filterwarnings("ignore:left out of the store")
@pytest.mark.parametrize("kind", [HiddenStateSamples, lambda store, **more: HiddenStateDataset(store, 100, **more)])
def test_a_loader_refuses_a_store_with_unreadable_shards(path, kind):
    cut_off(path, "shard-0002")
    cut_off(path, "shard-0005")
    with pytest.raises(
        StoreError, match=r"2 shards of .*: shard-0002, shard-0005 .*extractor verify .* --repair.*sample_ids=list"
    ):
        kind(path)
    with pytest.raises(InputError, match=r"'x2' is not sealed .*shard-0002, .*shard-0005, which can't be read"):
        kind(path, sample_ids=["x1", "x2"])
    store = Store.open(path)
    accepted = kind(store, sample_ids=list(store))
    assert accepted.samples.ids == ["x0", "x1", "x3", "x4"]


@pytest.mark.filterwarnings("ignore:left out of the store")
def test_an_export_advises_what_its_command_can_do(path, tmp_path, capsys):
    cut_off(path, "shard-0002")
    assert main(["export", str(path), "--to", "safetensors", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.endswith(f"run `extractor verify {path} --repair`, and go on with the others\n")
    assert "export: 1 shard of " in said
    assert said.count("--repair") == 1
    assert "sample_ids" not in said


def test_a_sample_that_is_not_listed_may_be_in_a_lost_shard(path, capsys):
    cut_off(path, "shard-0002")
    assert main(["inspect", str(path), "x2"]) == 1
    assert "no sample 'x2' among its 5; it may be in shard-0002, which can't be read; list" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:left out of the store")
def test_a_repaired_store_is_accepted(path):
    cut_off(path, "shard-0002")
    repair(path, check_store(path))
    (batch,) = HiddenStateDataset(path, 100, seed=None)
    assert batch["sample_ids"] == ["x0", "x1", "x3", "x4", "x5"]
    assert_same_rows(batch["hidden_states"][10:15].numpy(), SAMPLES["x3"])


def test_a_worker_that_can_not_read_a_shard_names_it(path):
    data = HiddenStateDataset(path, 100, seed=None)
    shutil.rmtree(path / "shard-0002")
    with pytest.raises(StoreError, match=r"has no sample 'x2'.*shard-0002"):
        list(DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn"))


@pytest.mark.filterwarnings("ignore:left out of the store")
def test_a_loader_refuses_a_store_with_parts_elsewhere(path, tmp_path):
    add_part(path, Part(host="h", path=tmp_path / "away", run_id="r", first_shard=10_000))
    with pytest.raises(StoreError, match="1 of its parts lie on other hosts, h:.*away.*gather"):
        HiddenStateDataset(path, 100)
    assert len(HiddenStateDataset(path, 100, sample_ids=["x1"]).samples) == 1
