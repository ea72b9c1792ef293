"""Epochs in DataLoader's workers: told by set_epoch before each pass, as documented, whether they live on or not."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import pytest
import torch
from store_cases import a_store, content, many
from torch.utils.data import DataLoader

from extractor import HiddenStateDataset

BUDGET = 100


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return a_store(tmp_path_factory.mktemp("epochs") / "store", many(30))


@pytest.fixture(scope="module")
def epochs(store):
    """What each epoch holds when it is read in this process: (epoch, step, ids) of every batch."""
    data = HiddenStateDataset(store, BUDGET)
    told = [what(data) for _ in range(4)]
    assert len({str(batches) for batches in told}) == 4
    return told


def what(batches):
    return [(batch["epoch"], batch["step"], batch["sample_ids"]) for batch in batches]


def loader_of(data, context="fork", workers=2, persistent=False):
    return DataLoader(
        data,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=persistent,
    )


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_set_epoch_reaches_the_workers(store, epochs, context, persistent):
    data = HiddenStateDataset(store, BUDGET)
    loader = loader_of(data, context, persistent=persistent)
    for epoch in (0, 2, 2):
        data.set_epoch(epoch)
        batches = list(loader)
        assert what(batches) == epochs[epoch]
        assert len(loader) == len(batches)
        for batch in batches:
            rows = [content(name, store.num_tokens(name), store.manifest)[2] for name in batch["sample_ids"]]
            assert torch.equal(batch["hidden_states"], torch.cat([torch.from_numpy(part) for part in rows]))


@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_after_a_pass_left_early(store, epochs, persistent):
    data = HiddenStateDataset(store, BUDGET)
    loader = loader_of(data, persistent=persistent)
    passing = iter(loader)
    next(passing)
    del passing
    for epoch in (0, 1):
        data.set_epoch(epoch)
        assert what(loader) == epochs[epoch]


def test_a_worker_that_begins_late_does_not_take_the_next_pass_for_the_one_before(store, epochs):
    """It began the pass that had been left with the start that was set for the next one, and went on from there."""
    data = HiddenStateDataset(store, BUDGET)
    left = multiprocessing.get_context("fork").Event()
    loader = loader_of(data, persistent=True)
    loader.worker_init_fn = lambda worker: worker == 0 or left.wait()
    passing = iter(loader)
    next(passing)
    del passing
    data.set_epoch(0)
    left.set()
    assert what(loader) == epochs[0]


def test_a_pass_that_was_left_early_begins_again(store, epochs):
    """Without set_epoch: what the workers had read ahead was in no pass."""
    loader = loader_of(HiddenStateDataset(store, BUDGET), persistent=True)
    for _ in range(2):
        passing = iter(loader)
        assert what([next(passing), next(passing)]) == epochs[0][:2]
        del passing
    assert what(loader) == epochs[0]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loaded_state_reaches_the_workers(store, epochs, persistent):
    data = HiddenStateDataset(store, BUDGET)
    loader = loader_of(data, persistent=persistent)
    data.set_epoch(2)
    consumed = list(loader)[:3]
    data.load_state_dict(data.state_dict(consumed[-1]["step"] + 1))
    assert what(loader) == epochs[2][3:]
    data.set_epoch(3)
    assert what(loader) == epochs[3]


def test_without_set_epoch_workers_repeat_the_epoch_and_say_so(store, epochs, capfd):
    loader = loader_of(HiddenStateDataset(store, BUDGET), "spawn")  # a fork would have pytest's hold on warnings
    assert what(loader) == epochs[0]
    assert "read once more" not in capfd.readouterr().err
    assert what(loader) == epochs[0]
    said = capfd.readouterr().err
    assert said.count("epoch 0 is read once more") == 1
    assert "call set_epoch(number) on the data set before each pass" in said


def test_persistent_workers_go_on_by_themselves(store, epochs):
    loader = loader_of(HiddenStateDataset(store, BUDGET), persistent=True)
    assert [what(loader) for _ in range(3)] == epochs[:3]


def test_workers_go_on_where_this_process_stopped(store, epochs):
    data = HiddenStateDataset(store, BUDGET)
    passing = iter(data)
    read = what(next(passing) for _ in range(3))
    resumed = HiddenStateDataset(store, BUDGET)
    resumed.load_state_dict(data.state_dict())
    assert read + what(loader_of(resumed)) == epochs[0]
    assert read + what(loader_of(data)) == epochs[0]


def test_a_loader_without_workers_advances_by_itself(store, epochs):
    loader = DataLoader(HiddenStateDataset(store, BUDGET), batch_size=None)
    assert [what(loader) for _ in range(4)] == epochs


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_a_copy_has_a_start_of_its_own(store, epochs, copied):
    data = HiddenStateDataset(store, BUDGET)
    other = copied(data)
    loader = loader_of(other, persistent=True)
    assert what(loader) == epochs[0]
    data.set_epoch(3)
    other.set_epoch(2)
    assert what(loader) == epochs[2]
    assert what(data) == epochs[3]
