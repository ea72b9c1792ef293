"""The bytes of seals and index blocks: golden files, round trips of anything, refusal of any damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden import make
from hypothesis import given
from hypothesis import strategies as st
from store_samples import assert_same_rows

from extractor.errors import CorruptError
from extractor.record import (
    ENTRY,
    STATS,
    TILE,
    Seal,
    decode_index,
    decode_seal,
    encode_index,
    encode_seal,
    index_entry,
    stats_from_counts,
)
from extractor.store import Store

GOLDEN = Path(__file__).parent / "golden"
u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)


@st.composite
def seals(draw):
    tokens = draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20))
    floats = st.floats(width=32, allow_nan=False)
    return Seal(
        sample_id=draw(st.text(max_size=20)),
        row_bytes=draw(u32),
        token_ids=np.array(tokens, np.int32),
        loss_mask=np.array(draw(st.lists(st.integers(0, 255), min_size=len(tokens), max_size=len(tokens))), np.uint8),
        stats=np.array(draw(st.lists(st.tuples(u64, u64, u64, floats), max_size=4)), STATS),
        tiles=np.array(draw(st.lists(st.tuples(u64, u64, st.integers(0, 2**40), u64, u32, u32), max_size=5)), TILE),
    )


def assert_same_seal(got, want):
    assert (got.sample_id, got.row_bytes) == (want.sample_id, want.row_bytes)
    for name in ("token_ids", "loss_mask", "stats", "tiles"):
        got_array, want_array = getattr(got, name), getattr(want, name)
        assert got_array.dtype == want_array.dtype
        np.testing.assert_array_equal(got_array, want_array)


def test_bytes_are_those_of_the_golden_files():
    assert encode_seal(make.seal()) == (GOLDEN / "seal_v1.bin").read_bytes()
    assert make.index() == (GOLDEN / "index_v1.bin").read_bytes()


def test_golden_seal_field_by_field():
    """The layout that docs/store.md states, read without our own code."""
    data = (GOLDEN / "seal_v1.bin").read_bytes()
    assert data[:4] == b"SEAL"
    header = np.frombuffer(data, "<u4", 7, 4)
    assert header.tolist() == [1, 3, 2, 2, 12, 8, 0]  # version, tokens, tiles, layers, row bytes, id bytes, reserved
    assert np.frombuffer(data, "<u8", 4, 32).tolist() == [0, 8208, 24, 2**63 + 1]
    assert np.frombuffer(data, "<u4", 2, 64).tolist() == [0, 2]
    stats = 32 + 2 * 40
    assert np.frombuffer(data, "<u8", 3, stats).tolist() == [1, 2, 3]
    assert np.frombuffer(data, "<f4", 1, stats + 24).tolist() == [65504.0]
    tokens = stats + 2 * 28
    assert np.frombuffer(data, "<i4", 3, tokens).tolist() == [0, 151_000, -1]
    assert data[tokens + 12 : tokens + 15] == bytes([0, 1, 1])
    assert data[tokens + 15 : -8].decode() == "A2-17/é"


@pytest.mark.parametrize("codec", ["none", "shuffle-zstd"])
def test_a_store_of_format_version_1_stays_readable(codec):
    store = Store.open(GOLDEN / f"store_v1_{codec}", check=True)
    want = make.store_samples(store.manifest)
    assert list(store) == list(want)
    for name, rows in want.items():
        assert_same_rows(store[name].hidden_states, rows)


@given(seals(), st.binary(max_size=9))
def test_any_seal_survives_encoding_and_padding(seal, padding):
    assert_same_seal(decode_seal(encode_seal(seal) + padding, "x"), seal)


@given(seals(), st.data())
def test_any_flipped_bit_of_a_seal_is_noticed(seal, data):
    raw = bytearray(encode_seal(seal))
    position = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[position // 8] ^= 1 << position % 8
    with pytest.raises(CorruptError):
        decode_seal(bytes(raw), "x")


@given(seals(), st.data())
def test_any_cut_off_seal_is_noticed(seal, data):
    raw = encode_seal(seal)
    with pytest.raises(CorruptError):
        decode_seal(raw[: data.draw(st.integers(0, len(raw) - 1))], "x")


@given(st.lists(st.tuples(st.text(max_size=8), u32), max_size=8), st.data())
def test_index_blocks(rows, data):
    ids = [name for name, _ in rows]
    entries = np.zeros(len(rows), ENTRY)
    for entry, (name, tokens) in zip(entries, rows, strict=True):
        entry["id_bytes"], entry["num_tokens"] = len(name.encode()), tokens
    raw = encode_index(entries, "".join(ids).encode())
    got, names = decode_index(raw, "x")
    np.testing.assert_array_equal(got, entries)
    assert names.decode() == "".join(ids)
    broken = bytearray(raw)
    position = data.draw(st.integers(0, 8 * len(raw) - 1))
    broken[position // 8] ^= 1 << position % 8
    with pytest.raises(CorruptError):
        decode_index(bytes(broken), "x")


def test_an_entry_counts_pages_of_tiles():
    seal = make.seal()
    seal.tiles["stored_bytes"] = [4080, 4081]  # with the page header: one page, two pages
    assert index_entry(seal, 16, 5000, 4096)["pages"] == 1 + 2


def test_stats_from_counts():
    peak = np.array([1.5, 65504.0], np.float32)
    counts = np.array([[1, 2, 3, 0], [4, 5, 6, 0]], np.int64)
    counts[:, 3] = peak.view(np.int32)
    assert stats_from_counts(counts).tolist() == [(1, 2, 3, 1.5), (4, 5, 6, 65504.0)]
