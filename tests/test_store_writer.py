"""The writer under any order of calls, its sizes, its codec, and what it reports."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_cases import a_store, many
from store_samples import SMALL, a_manifest, assert_same_rows, rows_of, seal, stats_of, write_samples

from extractor.errors import StoreError
from extractor.record import STATS
from extractor.store import ShardWriter, Store, WriterOptions, prepare_store
from extractor.store import codec as codecs
from extractor.store.disk import network_kind
from extractor.store.lane import Lane
from extractor.store.shard import Shard

MANIFEST = a_manifest()


def replaced(options, **changes):
    fields = {name: getattr(options, name) for name in WriterOptions.__dataclass_fields__}
    return WriterOptions(**{**fields, **changes})


@st.composite
def calls(draw):
    """Chunks, discards and seals of up to four samples, in any order that a scheduler may produce."""
    steps = st.tuples(st.integers(0, 3), st.sampled_from(["rows"] * 6 + ["discard", "seal"]), st.integers(1, 60))
    return draw(st.lists(steps, max_size=40))


@settings(max_examples=30, deadline=None)
@given(calls(), st.sampled_from([1, 2]), st.sampled_from(["none", "shuffle-zstd"]))
def test_any_order_of_calls(steps, lanes, codec):
    manifest = a_manifest(codec=codec)
    source = rows_of(0, 3000, manifest)
    open_rows: dict[str, list[np.ndarray]] = {}
    sealed: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = prepare_store(Path(folder) / "s", manifest).path
        with ShardWriter(path, run_id="r", writer=0, options=replaced(SMALL, lanes=lanes)) as writer:
            for number, (sample, action, size) in enumerate(steps):
                name = f"s{sample}"
                if action == "rows":
                    written = sum(map(len, open_rows.setdefault(name, [])))
                    open_rows[name].append(source[number * 60 : number * 60 + size])
                    lent = open_rows[name][-1].copy()
                    writer.write_rows(name, written, lent)
                    lent[:] = 0  # the caller's memory is its own again
                elif action == "discard":
                    writer.discard(name)
                    open_rows.pop(name, None)
                elif name in open_rows:
                    sealed[name] = np.concatenate(open_rows.pop(name))
                    seal(writer, name, sealed[name])
            if steps:
                writer.flush()
        store = Store.open(path, check=True)
        assert set(store) == set(sealed)
        for name, rows in sealed.items():
            assert_same_rows(store[name].hidden_states, rows)
        assert all(shard.file_bytes % 4096 == 0 for shard in store.shards)


def test_rows_may_come_in_any_order_of_positions(tmp_path):
    path = prepare_store(tmp_path / "s", MANIFEST).path
    rows = rows_of(0, 90, MANIFEST)
    with ShardWriter(path, run_id="r", writer=0, options=SMALL) as writer:
        for start in (60, 0, 30):
            writer.write_rows("a", start, rows[start : start + 30])
        seal(writer, "a", rows)
    assert_same_rows(Store.open(path)["a"].hidden_states, rows)


def test_shards_rotate_at_the_size_limit_and_end_where_their_data_ends(tmp_path):
    path = prepare_store(tmp_path / "s", MANIFEST).path
    samples = {f"s{i}": rows_of(i, 100, MANIFEST) for i in range(12)}
    write_samples(path, samples, options=replaced(SMALL, shard_bytes=40_000))
    store = Store.open(path, check=True)
    assert [shard.samples for shard in store.shards] == [3, 3, 3, 3]
    for shard in store.shards:
        assert not (path / shard.name / "lock.mdb").exists()
        assert shard.file_bytes < 3 * 19_200 + 100_000
        assert os.stat(path / shard.name / "data.mdb").st_blocks * 512 >= shard.file_bytes  # no holes for cp to fill
    for name, rows in samples.items():
        assert_same_rows(store[name].hidden_states, rows)


def test_nothing_else_of_the_process_gets_into_the_files(tmp_path):
    """Blocks of about a page's size are freed all over the heap, where LMDB takes its pages from: without clearing
    them, a data file held the text thousands of times."""
    blocks = [bytearray(b"not for others. " * count) for _ in range(3000) for count in (256, 257)]
    kept = blocks[::3]  # so that the free ones don't become one
    del blocks
    store = a_store(tmp_path / "s", many(60))
    assert len(kept) == 2000
    for file in store.path.rglob("*"):
        assert file.is_dir() or b"not for others" not in file.read_bytes(), file


def test_the_map_grows_when_the_estimate_was_wrong(tmp_path):
    path = prepare_store(tmp_path / "s", MANIFEST).path
    rows = rows_of(0, 20_000, MANIFEST)  # 3.8 MB through a map of 1 MB, while a reader has the store open
    with ShardWriter(path, run_id="r", writer=0, expected_bytes=1, options=SMALL) as writer:
        writer.write_rows("first", 0, rows[:50])
        seal(writer, "first", rows[:50])
        writer.flush()
        reader = Store.open(path)
        writer.write_rows("a", 0, rows)
        seal(writer, "a", rows)
        writer.flush()
        assert_same_rows(reader["first"].hidden_states, rows[:50])
        assert_same_rows(Store.open(path)["a"].hidden_states, rows)


def test_memory_does_not_grow_with_the_sample(tmp_path):
    """One sample of 96 MB through buffers of 4 MB, in a process of its own."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from store_samples import *
from extractor.store import prepare_store
def anonymous():  # pages of the file that LMDB maps are the page cache's, and ru_maxrss starts with the parent's
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])
manifest = a_manifest(hidden_size=2048)
path = prepare_store(Path({str(tmp_path / "s")!r}), manifest).path
options = WriterOptions(tile_bytes=1 << 20, group_bytes=4 << 20, buffer_bytes=4 << 20, lanes=1)
chunk = rows_of(0, 64, manifest)
with ShardWriter(path, run_id="r", writer=0, options=options) as writer:
    for n in range(128):
        if n == 16:
            before = most = anonymous()
        elif n > 16:
            most = max(most, anonymous())
        writer.write_rows("a", 64 * n, chunk)
    writer.seal("a", token_ids=np.zeros(64 * 128), loss_mask=np.zeros(64 * 128), stats=stats_of(chunk))
print(max(most, anonymous()) - before)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 12 << 10  # KiB; the sample's other seven eighths are 84 MB


def test_reading_needs_neither_torch_nor_vllm():
    code = "import sys, extractor.store; print([m for m in ('torch', 'vllm', 'transformers') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("bits", [0x0000, 0x8000, 0x7C01, 0xFE00, 0x0001, 0x7BFF])
def test_the_codec_keeps_every_bit(bits):
    """Both zeros, NaN payloads, subnormals; and uncompressible noise."""
    codec = codecs.codec("shuffle-zstd")
    for raw in (np.full(5000, bits, np.uint16), rows_of(bits, 30, MANIFEST).view(np.uint16).reshape(-1)):
        data = raw.view(np.uint8)
        out = np.empty_like(data)
        codec.decode_into(np.frombuffer(codec.encode(data), np.uint8), out, "x")
        np.testing.assert_array_equal(out, data)


def test_the_codec_uses_the_dead_bits_of_bf16_values(tmp_path):
    manifest = a_manifest(codec="shuffle-zstd", hidden_size=256)
    values = np.random.default_rng(0).standard_t(4, (600, 3, 256)).astype(np.float32)
    rows = (values.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float16)
    path = prepare_store(tmp_path / "s", manifest).path
    write_samples(path, {"a": rows}, options=WriterOptions(lanes=1))
    assert Store.open(path).stored_bytes.sum() < 0.73 * rows.nbytes
    assert_same_rows(Store.open(path, check=True)["a"].hidden_states, rows)


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, b"x" * 200])
def test_a_damaged_chunk_is_an_error_and_no_crash(damage):
    with pytest.raises(StoreError, match="the tile (can't be decompressed|decompresses to)"):
        codecs.codec("shuffle-zstd").decode_into(np.frombuffer(damage, np.uint8), np.empty(64, np.uint8), "the tile")


def test_the_codec_lets_other_threads_run():
    import blosc2

    blosc2.set_releasegil(False)
    codecs.codec("shuffle-zstd")
    assert blosc2.set_releasegil(True), "the setting before this call"


def test_a_missing_codec_library_is_named(monkeypatch, tmp_path):
    prepare_store(tmp_path / "s", a_manifest(codec="shuffle-zstd"))
    monkeypatch.setitem(sys.modules, "blosc2", None)
    with pytest.raises(StoreError, match="needs the package blosc2.*pip install blosc2"):
        Store.open(tmp_path / "s")


def test_the_report_says_what_the_writer_waited_for(tmp_path):
    path = prepare_store(tmp_path / "s", MANIFEST).path
    rows = rows_of(0, 200, MANIFEST)
    with ShardWriter(path, run_id="r", writer=0, options=SMALL) as writer:
        writer.write_rows("a", 0, rows)
        seal(writer, "a", rows)
        assert writer.report.durable == 0
        writer.flush()
        report = writer.report
        assert (report.sealed, report.durable, report.stored_bytes, report.dead_bytes) == (1, 1, rows.nbytes, 0)
        writer._lanes.lanes[0].shard.commit = lambda: __import__("time").sleep(0.05)  # a slow disk
        for number in range(3):
            writer.write_rows(f"b{number}", 0, rows)
        assert writer.report.limit == "disk"
        assert writer.report.stall_seconds > 0.05
        del writer._lanes.lanes[0].shard.commit


@pytest.mark.parametrize("codec", ["none", "shuffle-zstd"])
def test_a_slow_lane_keeps_the_callers_rows_until_it_has_them(tmp_path, monkeypatch, codec):
    manifest = a_manifest(codec=codec)
    path = prepare_store(tmp_path / "s", manifest).path
    put = Shard.put_tile
    monkeypatch.setattr(Shard, "put_tile", lambda shard, value: (time.sleep(0.005), put(shard, value))[1])
    rows = rows_of(0, 210, manifest)
    with ShardWriter(path, run_id="r", writer=0, options=SMALL) as writer:
        for start in range(0, 210, 70):
            lent = rows[start : start + 70].copy()
            writer.write_rows("a", start, lent)
            lent[:] = 0
        seal(writer, "a", rows)
    assert_same_rows(Store.open(path, check=True)["a"].hidden_states, rows)


@pytest.mark.parametrize(("busy", "turns"), [(True, "000111000111"), (False, "000000000000")])
def test_lanes_take_turns(tmp_path, monkeypatch, busy, turns):
    """A lane gets a turn of whole samples and commits it at once; the next one goes on if it is still at it."""
    path = prepare_store(tmp_path / "s", MANIFEST).path
    options = replaced(SMALL, lanes=2, group_bytes=1 << 16, turn_bytes=1 << 15, commit_seconds=60)
    monkeypatch.setattr(Lane, "is_busy", property(lambda lane: busy))
    rows = rows_of(0, 60, MANIFEST)  # 11,520 bytes: three samples are more than half a group
    with ShardWriter(path, run_id="r", writer=0, options=options) as writer:
        for number in range(12):
            writer.write_rows(f"s{number:02}", 0, rows)
            seal(writer, f"s{number:02}", rows)
    store = Store.open(path)
    where = {name: store.place(row)[0] for row, name in enumerate(store)}
    assert [where[f"s{number:02}"][-1] for number in range(12)] == list(turns)


def test_a_closed_writer_gives_its_buffers_back_without_a_collection(tmp_path):
    path = prepare_store(tmp_path / "s", MANIFEST).path
    gc.collect()
    gc.disable()
    try:
        writer = ShardWriter(path, run_id="r", writer=0, options=SMALL)
        writer.write_rows("a", 0, rows_of(0, 1, MANIFEST))
        writer.close()
        gone = weakref.ref(writer)
        del writer
        assert gone() is None
    finally:
        gc.enable()


def test_the_seal_must_fit(tmp_path):
    path = prepare_store(tmp_path / "s", MANIFEST).path
    rows = rows_of(0, 4, MANIFEST)
    with ShardWriter(path, run_id="r", writer=0, options=SMALL) as writer:
        writer.write_rows("a", 0, rows)
        with pytest.raises(StoreError, match="4 token ids and a loss mask of 3"):
            writer.seal("a", token_ids=np.zeros(4), loss_mask=np.zeros(3), stats=stats_of(rows))
        with pytest.raises(StoreError, match=r"expected record.STATS \[3\]"):
            writer.seal("a", token_ids=np.zeros(4), loss_mask=np.zeros(4), stats=np.zeros(2, STATS))
        with pytest.raises(StoreError, match="has no tokens|never written"):
            writer.seal("b", token_ids=np.zeros(0), loss_mask=np.zeros(0), stats=stats_of(rows))
    with pytest.raises(StoreError, match="is closed"):
        writer.write_rows("a", 0, rows)
    with pytest.raises(StoreError, match="does not fit a tile"):
        ShardWriter(path, run_id="r", writer=1, options=replaced(SMALL, tile_bytes=100))


def test_network_file_systems_are_recognised(tmp_path):
    mounts = tmp_path / "mounts"
    lines = ["/dev/sda / ext4 rw 0 0", f"host:/x {tmp_path} nfs4 rw 0 0", f"/dev/sdb {tmp_path}/local ext4 rw 0 0"]
    mounts.write_text("\n".join(lines))
    assert network_kind(tmp_path / "store", str(mounts)) == "nfs4"
    assert network_kind(tmp_path / "local" / "store", str(mounts)) is None
    assert network_kind(tmp_path, "/nonexistent") is None


def test_a_network_file_system_is_warned_about(tmp_path, monkeypatch):
    monkeypatch.setattr("extractor.store.preparation.network_kind", lambda path: "nfs4")
    with pytest.warns(UserWarning, match=r"network file system \(nfs4\).*not reliable"):
        prepare_store(tmp_path / "s", MANIFEST)
