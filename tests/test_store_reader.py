"""Readers in threads, forked and spawned workers, and on damaged shards."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from store_samples import a_manifest, assert_same_rows, rows_of, write_samples

from extractor.errors import CorruptError, StoreError, UsageError
from extractor.store import MissingSampleError, Store, prepare_store
from extractor.store.catalog import Catalog

MANIFEST = a_manifest()
SAMPLES = {f"s{i:02}": rows_of(i, 5 + 23 * i, MANIFEST) for i in range(12)}


@pytest.fixture
def path(tmp_path):
    path = prepare_store(tmp_path / "s", MANIFEST).path
    write_samples(path, SAMPLES)
    return path


def bits_of(store, name):
    return store[name].hidden_states.view(np.uint16)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_kind(path, method):
    """The parent has read before, so that its descriptor is inherited or left behind."""
    store = Store.open(path, check=True)
    assert_same_rows(store["s03"].hidden_states, SAMPLES["s03"])
    with multiprocessing.get_context(method).Pool(2) as pool:
        results = pool.starmap(bits_of, [(store, name) for name in SAMPLES])
    for got, want in zip(results, SAMPLES.values(), strict=True):
        np.testing.assert_array_equal(got, want.view(np.uint16))
    assert_same_rows(store["s03"].hidden_states, SAMPLES["s03"])


def test_threads_share_a_store(path):
    store = Store.open(path)
    names = list(SAMPLES) * 10
    with ThreadPoolExecutor(8) as pool:
        for name, got in zip(names, pool.map(lambda name: bits_of(store, name), names), strict=True):
            np.testing.assert_array_equal(got, SAMPLES[name].view(np.uint16))


def test_arrays_outlive_their_store(path):
    store = Store.open(path)
    sample = store["s05"]
    rows = sample.hidden_states
    del store
    rows[0] = 7
    assert_same_rows(pickle.loads(pickle.dumps(Store.open(path)))["s05"].hidden_states, SAMPLES["s05"])
    assert sample.hidden_states is rows


def test_a_store_is_a_snapshot(path):
    store = Store.open(path)
    write_samples(path, {"new": SAMPLES["s01"]}, run_id="later")
    assert "new" not in store
    assert "new" in Store.open(path)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 29)])
def test_ranges_that_do_not_exist(path, start, stop):
    with pytest.raises(UsageError, match=f"rows {start} to {stop} of sample 's01' do not exist; it has 28 tokens"):
        Store.open(path)["s01"].copy_rows(np.empty((1, 3, 32), np.float16), start, stop)


@pytest.mark.parametrize(
    "buffer",
    [
        np.empty((28, 3, 31), np.float16),
        np.empty((28, 3, 32), np.float32),
        np.empty((28, 3, 64), np.float16)[:, :, ::2],
        np.broadcast_to(np.float16(0), (28, 3, 32)),
    ],
    ids=["shape", "dtype", "strides", "read-only"],
)
def test_buffers_that_do_not_fit(path, buffer):
    with pytest.raises(UsageError, match="pass a writable C-contiguous float16"):
        Store.open(path)["s01"].copy_rows(buffer)


def test_flipped_bits_never_crash_a_reader_or_pass_for_data(path):
    """Root, branch and leaf pages and page headers; in forked processes, since the harm would be a signal."""
    file = path / "shard-0000" / "data.mdb"
    whole = file.read_bytes()
    flags = {page: struct.unpack_from("<H", whole, page * 4096 + 10)[0] for page in range(len(whole) // 4096)}
    tree = [page for page, flag in flags.items() if flag in (1, 2, 8)]
    rng = random.Random(0)
    outcomes = set()
    for _ in range(150):
        damaged = bytearray(whole)
        at = rng.choice(tree) * 4096 + (rng.randrange(160) if rng.random() < 0.7 else rng.randrange(4096))
        damaged[at] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        outcomes.add(outcome_of_reading(path))
    assert outcomes == {"whole", "refused"}


def test_neighbouring_tiles_are_read_at_once_and_each_header_is_looked_at(path, monkeypatch):
    sample = Store.open(path)["s11"]
    assert len(sample.seal.tiles) > 5
    calls, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: (calls.append(args), preadv(*args))[1])
    assert_same_rows(sample.hidden_states, SAMPLES["s11"])
    assert len(calls) == 1 + sum(
        after - before != 4096 for before, after in pairwise(sample.seal.tiles["offset"].tolist())
    )
    file = path / "shard-0000" / "data.mdb"
    whole = file.read_bytes()
    for tile in sample.seal.tiles:
        damaged = bytearray(whole)
        damaged[tile["offset"] - 16] ^= 1  # the page's number
        file.write_bytes(damaged)
        with pytest.raises(CorruptError, match=f"byte {tile['offset']} of .* does not hold a value"):
            Store.open(path)["s11"].copy_rows(np.empty_like(SAMPLES["s11"]))
    file.write_bytes(whole[: int(sample.seal.tiles["offset"][-1]) + 9])
    with pytest.raises(CorruptError, match="was cut off"):
        sample.copy_rows(np.empty_like(SAMPLES["s11"]))


@pytest.mark.parametrize("table", [b"tiles", b"index"])
def test_a_page_that_lost_entries_is_no_smaller_store(path, table):
    """The main leaf without a table's name, and an index leaf whose number of entries says fewer."""
    file = path / "shard-0000" / "data.mdb"
    whole = bytearray(file.read_bytes())
    assert outcome_of_reading(path) == "whole"
    leaves = [at for at in range(0, len(whole), 4096) if struct.unpack_from("<H", whole, at + 10)[0] == 2]
    damaged = 0
    for at in leaves:
        (lower,) = struct.unpack_from("<H", whole, at + 12)
        if (table in whole[at : at + 4096]) if table == b"tiles" else lower > 18:
            short = bytearray(whole)
            struct.pack_into("<H", short, at + 12, lower - 2)
            file.write_bytes(short)
            outcome = outcome_of_reading(path)
            assert outcome in ("whole", "refused")  # pages of older roots, or of another table, are never read
            damaged += outcome == "refused"
    assert damaged


def outcome_of_reading(path):
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            store = Store.quietly(path)
            same = all((bits_of(store, name) == SAMPLES[name].view(np.uint16)).all() for name in store)
            code = 0 if same and len(store) == len(SAMPLES) else 1 if store.problems else 2
        except StoreError:
            code = 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {0: "whole", 1: "refused"}.get(code, f"wrong or dead: {code} ")


def test_a_million_samples_open_in_little_memory(tmp_path):
    """Index blocks of a million ids; what the entries point to is never touched."""
    import subprocess
    import sys

    from extractor.record import ENTRY, checksum, encode_index
    from extractor.store.shard import Shard

    path = prepare_store(tmp_path / "s", MANIFEST).path
    for number in range(8):
        shard = Shard.create(path, MANIFEST, {"run_id": "r", "writer": number}, 1 << 30, 1 << 20)
        ids = [f"A2-{number}-{i:08}" for i in range(125_000)]
        entries = np.zeros(len(ids), ENTRY)
        entries["hash"] = [checksum(name.encode()) for name in ids]
        entries["id_bytes"], entries["num_tokens"], entries["seal_offset"] = len(ids[0]), 100, np.arange(len(ids))
        shard._put(b"index", encode_index(entries, "".join(ids).encode()))
        shard.commit()
        shard.close()
    code = (
        "from pathlib import Path; from extractor.store import Store; "
        f"store = Store.open({str(path)!r}); assert len(store) == 10**6 and 'A2-7-00124999' in store; "
        "assert 'A2-7-00125000' not in store and store.lengths.sum() == 10**8; "
        # not ru_maxrss: a child starts with its parent's
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 200_000  # KiB, the interpreter included


def test_the_ids_alike_are_looked_for_only_when_they_are_shown(path, monkeypatch):
    searched, nearest = [], Catalog.nearest
    monkeypatch.setattr(Catalog, "nearest", lambda *args: (searched.append(args[1]), nearest(*args))[1])
    store = Store.open(path)
    assert store.get("s99") is None
    with pytest.raises(MissingSampleError) as caught:
        store["s99"]
    assert searched == []
    message = str(caught.value)
    assert re.search(r"has no sample 's99' among its 12; list them with .* --list`; nearest: 's09', ", message)
    assert searched == ["s99"]
    assert str(pickle.loads(pickle.dumps(caught.value))) == message
    assert str(MissingSampleError(message)) == message  # as a DataLoader brings it from a worker


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_example_of_the_page_reads_both_dtypes(tmp_path, dtype):
    manifest = a_manifest(dtype=dtype)
    rows = rows_of(3, 400, manifest)
    write_samples(prepare_store(tmp_path / "s", manifest).path, {"A2-17": rows})
    page = (Path(__file__).parent.parent / "docs" / "store.md").read_text()
    example = page.split("```python\n")[1].split("```")[0].replace("out/store", str(tmp_path / "s"))
    names = {"buffer": np.empty((256, *manifest.row_shape), np.uint16)}
    exec(example, names)  # noqa: S102 - the documentation's own words
    assert names["states"].dtype.name == str(names["tensor"].dtype).removeprefix("torch.") == dtype
    assert_same_rows(names["states"], rows)
    assert_same_rows(names["buffer"], rows[100:356])
    wanted = names["states"].astype(np.float32)
    assert np.array_equal(names["tensor"].float().numpy(), wanted, equal_nan=True)
