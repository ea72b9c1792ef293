"""The loader: values against what was stored, every sample once over ranks, workers and restarts, clear refusals."""

from __future__ import annotations

import errno
import shutil
import threading

import numpy as np
import pytest
import torch
from store_cases import a_store, add, content, damage, many
from torch.utils.data import DataLoader

from extractor import HiddenStateDataset
from extractor.errors import CorruptError, FingerprintError, InputError, StoreError, UsageError
from extractor.loader import BatchOptions, HiddenStateSamples
from extractor.loader.buffers import BufferPool
from extractor.store import Store

BUDGET = 100
LENGTHS = many(60)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return a_store(tmp_path_factory.mktemp("loader") / "store", LENGTHS)


def samples_of(batch):
    """(id, token_ids, mask, positions, states) of each sample of a packed batch."""
    bounds = batch["cu_seqlens"].tolist()
    for name, a, b in zip(batch["sample_ids"], bounds[:-1], bounds[1:], strict=True):
        yield name, *(batch[key][a:b] for key in ("input_ids", "loss_mask", "position_ids", "hidden_states"))


def assert_stored(batch, manifest):
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["cu_seqlens"][-1] == len(batch["input_ids"])
    for name, tokens, mask, positions, states in samples_of(batch):
        expected = content(name, len(tokens), manifest)
        assert tokens.tolist() == expected[0].tolist()
        assert mask.tolist() == expected[1].astype(bool).tolist()
        assert positions.tolist() == list(range(len(tokens)))
        want = torch.from_numpy(expected[2].astype(np.float32)).to(states.dtype)
        assert torch.equal(states, want), name
        assert len(tokens) == LENGTHS[name]


def test_every_sample_once_with_its_values(store):
    data = HiddenStateDataset(store, BUDGET)
    batches = list(data)
    assert sorted(name for batch in batches for name in batch["sample_ids"]) == sorted(LENGTHS)
    for batch in batches:
        assert batch["hidden_states"].dtype == torch.float16
        assert len(batch["input_ids"]) <= BUDGET
        assert batch["max_seqlen"] == max(LENGTHS[name] for name in batch["sample_ids"])
        assert_stored(batch, store.manifest)
    batches[0]["hidden_states"].add_(1)  # writable: it is the trainer's own memory
    assert_stored(batches[1], store.manifest)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("codec", ["none", "shuffle-zstd"])
def test_other_dtypes_and_codecs(tmp_path, dtype, wanted, codec):
    store = a_store(tmp_path / "s", {"s0": LENGTHS["s0"], "s1": LENGTHS["s1"]}, dtype=dtype, codec=codec)
    (batch,) = HiddenStateDataset(store, 1000, options=BatchOptions(dtype=wanted))
    assert batch["hidden_states"].dtype == wanted
    assert_stored(batch, store.manifest)


def test_last_state_apart_and_padding(store):
    options = BatchOptions(last_apart=True, padded=True)
    for batch in HiddenStateDataset(store, BUDGET, options=options):
        inside = batch["attention_mask"]
        lengths = inside.sum(1).tolist()
        assert lengths == [LENGTHS[name] for name in batch["sample_ids"]]
        for row, name in enumerate(batch["sample_ids"]):
            token_ids, mask, rows = content(name, lengths[row], store.manifest)
            n = lengths[row]
            assert batch["input_ids"][row, :n].tolist() == token_ids.tolist()
            assert batch["loss_mask"][row, :n].tolist() == mask.astype(bool).tolist()
            assert batch["position_ids"][row, :n].tolist() == list(range(n))
            assert np.array_equal(batch["hidden_states"][row, :n].numpy(), rows[:, :-1])
            assert np.array_equal(batch["last_hidden_states"][row, :n].numpy(), rows[:, -1])
        for key in ("input_ids", "loss_mask", "position_ids", "hidden_states", "last_hidden_states"):
            assert not batch[key][~inside].any(), key


def test_last_state_apart_needs_the_last_state(tmp_path):
    store = a_store(tmp_path / "s", {"a": 3}, layer_ids=(2, 3, 5))
    with pytest.raises(StoreError, match=r"layer id 6 .*holds ids \[2, 3, 5\].*--layers 2,3,5 --last"):
        HiddenStateDataset(store, 10, options=BatchOptions(last_apart=True))


def test_ranks_share_an_epoch(store):
    seen = []
    counts = set()
    for rank in range(3):
        data = HiddenStateDataset(store, BUDGET, rank, 3)
        batches = list(data)
        assert len(batches) == len(data)
        counts.add(len(batches))
        seen += [name for batch in batches for name in batch["sample_ids"]]
    assert len(counts) == 1
    assert sorted(seen) == sorted(LENGTHS)


def ids_of(batches):
    return [batch["sample_ids"] for batch in batches]


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_deliver_the_same_batches_in_the_same_order(store, context):
    alone = list(HiddenStateDataset(store, BUDGET, 1, 2))
    loader = DataLoader(
        HiddenStateDataset(store, BUDGET, 1, 2),
        batch_size=None,
        num_workers=2,
        multiprocessing_context=context,
        prefetch_factor=1,
    )
    for ours, theirs in zip(alone, loader, strict=True):
        assert ours["sample_ids"] == theirs["sample_ids"]
        assert ours["step"] == theirs["step"]
        assert torch.equal(ours["hidden_states"], theirs["hidden_states"])


def test_workers_read_the_samples_that_the_parent_saw(tmp_path):
    store = a_store(tmp_path / "s", {"a": 5, "b": 6})
    data = HiddenStateDataset(store, 10)
    add(store.path, {"0": 4, "c": 7}, store.manifest, "later")
    loader = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert sorted(name for batch in loader for name in batch["sample_ids"]) == ["a", "b"]
    assert len(HiddenStateDataset(store.path, 10).samples) == 4


def test_epochs_advance_and_differ(store):
    data = HiddenStateDataset(store, BUDGET)
    first, second = ids_of(data), ids_of(data)
    assert first != second
    data.set_epoch(0)
    assert ids_of(data) == first
    assert ids_of(HiddenStateDataset(store, BUDGET, seed=1)) != first
    ordered = HiddenStateDataset(store, BUDGET, seed=None, window=1)
    assert [name for batch in ordered for name in batch["sample_ids"]] == list(store)


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_resumes_mid_epoch_exactly(store, stop):
    whole = ids_of(HiddenStateDataset(store, BUDGET)) + ids_of(second_epoch(store))
    data = HiddenStateDataset(store, BUDGET)
    passing = iter(data)
    got = [next(passing)["sample_ids"] for _ in range(stop)]
    resumed = HiddenStateDataset(store.path, BUDGET)
    resumed.load_state_dict(data.state_dict())
    got += ids_of(resumed) + ids_of(resumed)
    assert got == whole


def second_epoch(store):
    data = HiddenStateDataset(store, BUDGET)
    data.set_epoch(1)
    return data


@pytest.mark.parametrize("threads", [1, 3])
def test_read_ahead_does_not_count_as_consumed(store, threads):
    whole = ids_of(HiddenStateDataset(store, BUDGET)) + ids_of(second_epoch(store))
    loader = HiddenStateDataset(store, BUDGET).loader(prefetch=3, threads=threads)
    passing = iter(loader)
    got = [next(passing)["sample_ids"] for _ in range(2)]
    state = loader.state_dict()
    passing.close()
    other = HiddenStateDataset(store, BUDGET).loader()
    other.load_state_dict(state)
    again = [*got, *ids_of(other), *ids_of(other)]
    assert again == whole
    assert ids_of(loader) == whole[2 : len(loader)]  # an abandoned pass continues where the trainer was


def test_state_of_a_loader_with_processes(store):
    whole = ids_of(HiddenStateDataset(store, BUDGET))
    data = HiddenStateDataset(store, BUDGET)
    passing = iter(DataLoader(data, batch_size=None, num_workers=2))
    consumed = [next(passing) for _ in range(3)]
    resumed = HiddenStateDataset(store, BUDGET)
    resumed.load_state_dict(data.state_dict(consumed[-1]["step"] + 1))
    rest = ids_of(DataLoader(resumed, batch_size=None, num_workers=2))
    assert ids_of(consumed) + rest == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"world_size": 2, "rank": 0}, "world_size 1, this loader has 2.*repeat some samples.*resume on 1 ranks"),
        ({"token_budget": 90}, "token_budget 100, this loader has 90"),
        ({"seed": 7}, "pass seed=0"),
        ({"sample_ids": ["s1", "s0"]}, "samples 60, this loader has 2.*sample_ids"),
        ({"sample_ids": [*list(LENGTHS)[1:], "s0"]}, "samples_digest"),
    ],
)
def test_a_state_of_another_order_is_refused(store, change, message):
    state = HiddenStateDataset(store, BUDGET).state_dict()
    other = HiddenStateDataset(**{"stores": store, "token_budget": BUDGET, **change})
    with pytest.raises(UsageError, match=message):
        other.load_state_dict(state)


def test_a_state_of_another_version_is_refused(store):
    data = HiddenStateDataset(store, BUDGET)
    with pytest.raises(UsageError, match="version 99; this release reads 1"):
        data.load_state_dict({**data.state_dict(), "version": 99})


def test_several_stores_as_one(tmp_path, store):
    other = a_store(tmp_path / "b", {"x": 9, "y": 3})
    data = HiddenStateDataset([store, other.path], BUDGET)
    assert sorted(name for batch in data for name in batch["sample_ids"]) == sorted([*LENGTHS, "x", "y"])


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"layer_ids": (1, 3, 5, 6)}, "layer_ids"), ({"dtype": "bfloat16"}, "dtype"), ({"hidden_size": 8}, "hidden_size")],
)
def test_unlike_stores_are_refused(tmp_path, store, changes, field):
    other = a_store(tmp_path / "b", {"x": 9}, **changes)
    with pytest.raises(FingerprintError, match=f"{field} is .* and "):
        HiddenStateDataset([store, other], BUDGET)


def test_bad_input_is_refused(tmp_path, store):
    with pytest.raises(StoreError, match="holds no sealed sample"):
        HiddenStateDataset(a_store(tmp_path / "empty", {}), BUDGET)
    with pytest.raises(UsageError, match=r"has \d+ tokens.*token budget of 20"):
        HiddenStateDataset(store, 20)
    with pytest.raises(UsageError, match="60 samples.*61 ranks"):
        HiddenStateDataset(store, BUDGET, 0, 61)
    with pytest.raises(UsageError, match="rank is 2 and world_size 2; its ranks are 0 to 1"):
        HiddenStateDataset(store, BUDGET, 2, 2)
    with pytest.raises(UsageError, match="world_size is 0; it must be at least 1"):
        HiddenStateDataset(store, BUDGET, 0, 0)
    with pytest.raises(UsageError, match="rank is -1 and world_size 1; its one rank is 0;"):
        HiddenStateDataset(store, BUDGET, -1, 1)
    with pytest.raises(UsageError, match="both or neither"):
        HiddenStateDataset(store, BUDGET, 2)
    with pytest.raises(InputError, match="'nope' is not sealed"):
        HiddenStateDataset(store, BUDGET, sample_ids=["s0", "nope"])
    with pytest.raises(InputError, match="'s0' is in .* trained on twice"):
        HiddenStateDataset([store, a_store(tmp_path / "twin", {"s0": 5})], BUDGET)
    with pytest.raises(UsageError, match="'ignore'; 'raise' and 'skip'"):
        BatchOptions(on_corrupt="ignore")
    with pytest.raises(UsageError, match="int64"):
        BatchOptions(dtype=torch.int64)
    with pytest.raises(StoreError, match="no store"):
        HiddenStateDataset([], BUDGET)


def test_a_damaged_sample_is_named_or_skipped(tmp_path):
    lengths = many(20, seed=3)
    store = a_store(tmp_path / "s", lengths)
    damage(store, "s7")
    with pytest.raises(CorruptError, match=r"sample 's7' is damaged.*checksum.*BatchOptions\(on_corrupt=\"skip\"\)"):
        list(HiddenStateDataset(store, BUDGET).loader())
    loader = HiddenStateDataset(store, BUDGET, options=BatchOptions(on_corrupt="skip")).loader()
    batches = list(loader)
    assert loader.skipped == ["s7"] == [name for batch in batches for name in batch["skipped"]]
    (place,) = [sample for batch in batches for sample in samples_of(batch) if sample[0] == "s7"]
    _, tokens, mask, _, states = place
    assert tokens.tolist() == content("s7", lengths["s7"], store.manifest)[0].tolist()
    assert not mask.any()
    assert not states.any()
    others = [sample for batch in batches for sample in samples_of(batch) if sample[0] != "s7"]
    assert len(others) == 19
    assert all(torch.equal(s[4], torch.from_numpy(content(s[0], len(s[1]), store.manifest)[2])) for s in others)


def test_a_store_deleted_while_open(tmp_path, monkeypatch):
    """What is open can still be read; a worker that has to open it, or a server that forgot it, gives an error."""
    lengths = many(20)
    a_store(tmp_path / "s", lengths)
    data = HiddenStateDataset(tmp_path / "s", BUDGET)
    shutil.rmtree(tmp_path / "s")
    assert sorted(name for batch in data.loader() for name in batch["sample_ids"]) == sorted(lengths)
    with pytest.raises(StoreError, match="does not exist"):
        list(DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn"))

    def stale(*_):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr("os.preadv", stale)
    with pytest.raises(StoreError, match="Stale file handle"):
        list(data.loader())


def test_leaving_a_pass_ends_its_thread(store):
    passing = iter(HiddenStateDataset(store, BUDGET).loader(prefetch=1))
    next(passing)
    passing.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hidden-states")]


def test_map_style_view(store):
    samples = HiddenStateSamples(store)
    assert samples.lengths.tolist() == [LENGTHS[name] for name in store]
    for index in (0, 5, -1):
        sample = samples[index]
        token_ids, mask, rows = content(sample["sample_id"], len(sample["input_ids"]), store.manifest)
        assert sample["input_ids"].tolist() == token_ids.tolist()
        assert sample["loss_mask"].tolist() == mask.astype(bool).tolist()
        assert np.array_equal(sample["hidden_states"].numpy(), rows)
    with pytest.raises(IndexError):
        samples[60]
    assert_stored(samples.packed([3, 1]), store.manifest)
    loader = DataLoader(samples, batch_size=4, collate_fn=list, num_workers=1, multiprocessing_context="spawn")
    assert [s["sample_id"] for part in loader for s in part] == list(store)


def test_memory_is_used_again_only_when_nothing_holds_it():
    pool = BufferPool(keep=1)
    first = pool.tensor((4, 3), torch.float16)
    first[:] = 7
    view = first[2:]
    address = first.data_ptr()
    del first
    second = pool.tensor((4, 3), torch.float16)
    second[:] = 1
    assert view.eq(7).all()
    assert second.data_ptr() != address
    del view
    assert pool.tensor((4, 3), torch.float16).data_ptr() == address
    assert pool.tensor((0, 3), torch.float16).shape == (0, 3)


def test_rows_never_share_memory_with_the_store(store):
    """Each batch owns its rows: changing one batch leaves a later read of the same samples as stored."""
    data = HiddenStateDataset(store, BUDGET)
    for batch in data:
        batch["hidden_states"].zero_()
        batch["input_ids"].zero_()
    fresh = HiddenStateDataset(Store.open(store.path, check=True), BUDGET)
    for batch in fresh:
        assert_stored(batch, store.manifest)
