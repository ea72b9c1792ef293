"""Writing and reading a store: values, order, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from store_samples import SMALL, a_manifest, assert_same_rows, rows_of, seal, write_samples

from extractor.errors import FingerprintError, StoreError, UsageError
from extractor.store import ShardWriter, Store, prepare_store
from extractor.store.lock import RunLock


@pytest.mark.parametrize("codec", ["none", "shuffle-zstd"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_interleaved_samples_come_back_bit_for_bit(tmp_path, codec, dtype):
    manifest = a_manifest(codec=codec, dtype=dtype)
    store = prepare_store(tmp_path / "s", manifest)
    assert len(store) == 0
    lengths = {"a": 1, "b": 21, "c": 130, "é/漢": 333}
    rows = {name: rows_of(i, n, manifest) for i, (name, n) in enumerate(lengths.items())}
    rng = np.random.default_rng(1)
    with ShardWriter(store.path, run_id="r1", writer=0, options=SMALL) as writer:
        done = dict.fromkeys(lengths, 0)
        while done:
            name = rng.choice(list(done))
            step = int(rng.integers(1, 40))
            writer.write_rows(name, done[name], rows[name][done[name] : done[name] + step])
            done[name] += step
            if done[name] >= lengths[name]:
                seal(writer, name, rows[name])
                del done[name]
    store = Store.open(tmp_path / "s", check=True)
    assert sorted(store) == sorted(lengths)
    assert "nope" not in store
    for name, want in rows.items():
        sample = store[name]
        got = sample.hidden_states
        assert got.dtype == want.dtype
        assert_same_rows(got, want)
        np.testing.assert_array_equal(sample.token_ids, np.arange(len(want)))
        np.testing.assert_array_equal(sample.loss_mask, np.arange(len(want)) % 2)
        assert store.num_tokens(name) == len(want)
        for start, stop in [(0, len(want)), (len(want) // 3, len(want) - len(want) // 4), (0, 0)]:
            for reader in (store, Store.open(store.path)):
                out = np.empty((stop - start, *manifest.row_shape), np.uint16)
                reader[name].copy_rows(out, start, stop)
                np.testing.assert_array_equal(out, want.view(np.uint16)[start:stop])


@pytest.fixture
def store(tmp_path):
    return prepare_store(tmp_path / "s", a_manifest())


@pytest.fixture
def writer(store):
    with ShardWriter(store.path, run_id="r1", writer=0, options=SMALL) as writer:
        yield writer


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 5), (7, 10)], "rows 5 to 6 were never written"),
        ([(1, 10)], "rows 0 to 0 were never written"),
        ([(0, 9)], "rows 9 to 9 were never written"),
        ([(0, 6), (4, 10)], "rows 4 to 5 were written twice"),
        ([(0, 12)], "rows 10 to 11 lie beyond its end"),
        ([], "rows 0 to 9 were never written"),
    ],
)
def test_a_hole_or_a_repeated_row_is_not_sealed(writer, store, spans, message):
    for start, stop in spans:
        writer.write_rows("x", start, rows_of(0, stop - start, store.manifest))
    with pytest.raises(StoreError, match=f"'x' of 10 tokens.*{message}"):
        seal(writer, "x", rows_of(0, 10, store.manifest))
    writer.flush()
    assert len(Store.open(store.path)) == 0


def test_a_discarded_start_is_invisible(writer, store):
    writer.write_rows("x", 0, rows_of(0, 100, store.manifest))
    writer.discard("x")
    want = rows_of(1, 40, store.manifest)
    writer.write_rows("x", 0, want)
    seal(writer, "x", want)
    writer.flush()
    got = Store.open(store.path)["x"].hidden_states
    assert_same_rows(got, want)
    assert writer.report.dead_bytes >= 80 * store.manifest.row_bytes
    assert writer.report.durable == 1


def test_rows_are_copied_before_write_rows_returns(writer, store):
    ring = rows_of(0, 50, store.manifest)
    want = ring.copy()
    writer.write_rows("x", 0, ring)
    ring[:] = 0
    seal(writer, "x", want)
    writer.flush()
    assert_same_rows(Store.open(store.path)["x"].hidden_states, want)


def test_more_open_samples_than_buffers(writer, store):
    want = {f"s{i}": rows_of(i, 9, store.manifest) for i in range(50)}
    for row in range(9):
        for name, rows in want.items():
            writer.write_rows(name, row, rows[row : row + 1])
    for name, rows in want.items():
        seal(writer, name, rows)
    writer.flush()
    for name, sample in Store.open(store.path, check=True).items():
        assert_same_rows(sample.hidden_states, want[name])


def test_newest_seal_wins_and_order_is_that_of_sealing(store):
    for run in range(2):
        names = ("a", "b") if run == 0 else ("a", "c")
        write_samples(store.path, {name: rows_of(run, 5, store.manifest) for name in names}, run_id=f"r{run}")
    again = Store.open(store.path)
    assert list(again) == ["b", "a", "c"]
    np.testing.assert_array_equal(
        again["a"].hidden_states.view(np.uint16), rows_of(1, 5, store.manifest).view(np.uint16)
    )
    np.testing.assert_array_equal(again.lengths, [5, 5, 5])


def test_wrong_rows_are_refused(writer, store):
    with pytest.raises(StoreError, match=r"float32 \[4, 3, 32\], the store keeps float16 \[r, 3, 32\]"):
        writer.write_rows("x", 0, np.zeros((4, 3, 32), np.float32))
    with pytest.raises(StoreError, match=r"float16 \[4, 2, 32\]"):
        writer.write_rows("x", 0, np.zeros((4, 2, 32), np.float16))


def test_a_store_that_never_got_a_shard_takes_the_next_configuration(store):
    prepare_store(store.path, a_manifest(samples_hash="s1"))
    assert Store.open(store.path).manifest.samples_hash == "s1"
    with RunLock(store.path, shared=False), pytest.raises(FingerprintError, match="samples_hash"):
        prepare_store(store.path, a_manifest(samples_hash="s2"))


def test_another_configuration_is_refused_by_field(store):
    write_samples(store.path, {"a": rows_of(0, 5, store.manifest)})
    other = a_manifest(layer_ids=(2, 3, 4), samples_hash="s1", options={"overflow": "error"}, created="later")
    before = sorted(p.name for p in store.path.iterdir())
    with pytest.raises(FingerprintError) as info:
        prepare_store(store.path, other)
    for part in ("layer_ids", "(2, 3, 5)", "(2, 3, 4)", "samples_hash", "'s0'", "'s1'", "options.overflow", "'error'"):
        assert part in str(info.value)
    assert "created" not in str(info.value)
    assert sorted(p.name for p in store.path.iterdir()) == before


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="holds something else.*notes.txt"):
        prepare_store(tmp_path, a_manifest())
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_second_writer_is_refused_with_the_first_ones_process(writer, store):
    import os

    with pytest.raises(StoreError, match=f"process {os.getpid()}"):
        ShardWriter(store.path, run_id="r1", writer=0)


def test_a_missing_sample_names_its_neighbours(store):
    write_samples(store.path, {"A2-17": rows_of(0, 5, store.manifest)})
    again = Store.open(store.path)
    with pytest.raises(KeyError, match="A2-17"):
        again["A2-18"]
    assert again.get("A2-18") is None
    with pytest.raises(UsageError, match="rows 0 to 6"):
        again["A2-17"].copy_rows(np.empty((6, 3, 32), np.float16), 0, 6)
