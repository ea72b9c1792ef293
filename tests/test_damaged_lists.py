"""Small files and links that say something else than was written: named, never a traceback, never a silent loss."""

from __future__ import annotations

import json
import mmap
import re
import shutil
import struct

import pytest
from store_samples import a_manifest, rows_of, write_samples

from extractor.cli import main
from extractor.compaction import compact
from extractor.errors import CorruptError, StoreError
from extractor.integrity import check_store
from extractor.repair import repair
from extractor.store import Store, WriterOptions, prepare_store
from extractor.store.rejects import Reject, add_rejects, read_rejects
from extractor.store.salvage import fingerprint_in
from extractor.store.shard import Shard

MANIFEST = a_manifest()
BRANCH, LEAF, OVERFLOW = 1, 2, 4
BIG_VALUE = 1
PART = '{"host": "h", "path": %s, "run_id": "r", "first_shard": %s}\n'
EACH_ITS_GROUP = WriterOptions(tile_bytes=4096, group_bytes=4096, turn_bytes=4096, buffer_bytes=32768, lanes=1)


@pytest.fixture
def path(tmp_path):
    path = prepare_store(tmp_path / "s", MANIFEST).path
    write_samples(path, {f"s{n}": rows_of(n, 20, MANIFEST) for n in range(3)})
    return path


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rejects.jsonl", b"\xff\xfe{}\n", "restore the file from a copy, or delete it and run .*--repair"),
        ("rejects.jsonl", b"[]\n", "not a reject"),
        ("rejects.jsonl", b"3\n", "not a reject"),
        ("rejects.jsonl", b'{"shard": 3, "reason": ""}\n', "not a reject"),
        ("rejects.jsonl", b'{"shard": "../model", "reason": ""}\n', r"not a reject \(shard '../model'"),
        ("rejects.jsonl", b'{"shard": "shard-0000", "seal_offset": "7", "reason": ""}\n', "not a reject"),
        ("shards.txt", b"shard-0000\n\xffhard-0001\n", "or delete it if no shard folder is missing"),
        ("parts.jsonl", b"\xff{}\n", "names no part"),
        ("parts.jsonl", (PART % ("3", "1")).encode(), "names no part"),
        ("parts.jsonl", (PART % ('"p"', '"x"')).encode(), "names no part"),
        ("manifest.json", b'{"options": 5}', "lacks"),
    ],
)
@pytest.mark.parametrize("command", [["inspect"], ["verify"], ["compact"]])
def test_a_damaged_list_is_named(path, command, name, text, message, capsys):
    (path / name).write_bytes(text)
    with pytest.raises(StoreError, match=message) as caught:
        Store.open(path)
    assert name in str(caught.value)
    assert main([*command, str(path)]) == 1
    assert name in capsys.readouterr().err


def test_options_of_another_type_are_named(path):
    fields = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**fields, "options": None}))
    with pytest.raises(StoreError, match="manifest field options is None"):
        Store.open(path)


@pytest.mark.parametrize("text", ['{"first_shard": ', "{}", "[]", '{"first_shard": "x"}'])
def test_a_part_that_does_not_know_its_first_shard_takes_no_rows(path, text):
    (path / "part.json").write_text(text)
    with pytest.raises(StoreError, match=r"part.json says nothing .*restore it from the line"):
        write_samples(path, {"new": rows_of(9, 5, MANIFEST)}, run_id="new")
    assert len(Store.open(path)) == 3


def test_no_flipped_bit_rejects_something_else(tmp_path):
    """`shard-0002` became `shard-0003`, and all samples of a sound shard were out of the store."""
    rejects = [
        Reject(shard="shard-0002", reason="lost"),
        Reject(shard="shard-0001", seal_offset=4112, sample_id="a", reason="its tile"),
    ]
    add_rejects(tmp_path, rejects)
    file = tmp_path / "rejects.jsonl"
    whole = file.read_bytes()
    refused = 0
    for position in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[position // 8] ^= 1 << position % 8
        file.write_bytes(flipped)
        try:
            assert read_rejects(tmp_path) == rejects, bytes(flipped)
        except StoreError:
            refused += 1
    assert refused > 0.98 * 8 * len(whole)
    file.write_text('{"shard": "shard-0002", "reason": "by hand"}\n')
    assert read_rejects(tmp_path) == [Reject(shard="shard-0002", reason="by hand")]


def test_what_the_messages_say_helps(path):
    """Without its lists the store is found whole, and what was rejected is found again."""
    seal = Store.open(path)["s1"].seal
    with (path / "shard-0000" / "data.mdb").open("r+b") as handle:
        handle.seek(int(seal.tiles[0]["offset"]))
        handle.write(b"\0\1\2\3")
    repair(path, check_store(path))
    assert sorted(Store.open(path)) == ["s0", "s2"]
    (path / "shards.txt").unlink()
    (path / "rejects.jsonl").unlink()
    assert sorted(Store.open(path)) == ["s0", "s1", "s2"]
    assert repair(path, check_store(path)).redo == ["s1"]


@pytest.mark.parametrize("name", ["\ud800", "s\udcff", "\udcff\udcfe"])
def test_an_id_that_no_text_can_have_is_not_there(path, name, capsys):
    """The shell hands over such ids for bytes that are no UTF-8."""
    store = Store.open(path)
    assert name not in store
    assert store.get(name) is None
    assert main(["inspect", str(path), name]) == 1
    assert "has no sample" in capsys.readouterr().err


def headed_pages(data):
    """(page, flags) of the pages that have a header of their own."""
    page = 0
    while page < len(data) // mmap.PAGESIZE:
        number, _, flags, pages = struct.unpack_from("<QHHI", data, page * mmap.PAGESIZE)
        yield page, flags
        page += pages if flags == OVERFLOW and number == page else 1


def nodes(data, page):
    """Offsets in the file of a tree page's nodes."""
    start = page * mmap.PAGESIZE
    (lower,) = struct.unpack_from("<H", data, start + 12)
    return [start + at for at in struct.unpack_from(f"<{(lower - 16) // 2}H", data, start + 16)]


def link_of(data, node, flags):
    """(offset, bytes) of the page number that a node holds, None for a value inside the page."""
    _, _, node_flags, key_bytes = struct.unpack_from("<HHHH", data, node)
    if flags & BRANCH:
        return node, 6
    return (node + 8 + key_bytes, 8) if node_flags & BIG_VALUE else None


def test_a_link_to_a_neighbour_hides_no_sample(tmp_path, monkeypatch):
    """One flipped bit in a page number leads to another page of the same kind, which has nothing wrong with it. The
    shard is a killed writer's, so that its index stands in its blocks only."""
    monkeypatch.setattr(Shard, "summarise", lambda self: None)
    path = prepare_store(tmp_path / "s", MANIFEST).path
    names = {f"s{n:03}" for n in range(420)}
    write_samples(path, {name: rows_of(0, 1, MANIFEST) for name in names}, options=EACH_ITS_GROUP)
    file = path / "shard-0000" / "data.mdb"
    whole = file.read_bytes()
    noticed = {BRANCH: 0, LEAF: 0}
    for page, flags in headed_pages(whole):
        links = [link for node in nodes(whole, page) if (link := link_of(whole, node, flags))] if flags < 3 else []
        if len(links) < 2:
            continue
        (at, size), (other, _) = links[:2]
        with file.open("r+b") as handle:
            handle.seek(at)
            handle.write(whole[other : other + size])
            handle.flush()
            store = Store.quietly(path)
            handle.seek(at)
            handle.write(whole[at : at + size])
        assert store.problems or set(store) == names, (page, flags)
        noticed[flags] += bool(store.problems)
    assert noticed[BRANCH] > 0
    assert noticed[LEAF] > 1
    assert set(Store.open(path)) == names


def description_in(path, whole):
    """Where the shard's description stands; LMDB leaves older copies of its page behind."""
    file = path / "shard-0000" / "data.mdb"
    for found in re.finditer(rb'{"format_version"', whole):
        file.write_bytes(whole[: found.start()] + b"x" + whole[found.start() + 1 :])
        if Store.quietly(path).problems:
            return found.start()
    raise AssertionError("no description")


def test_the_description_of_a_shard_is_checked_letter_by_letter(path):
    """Whatever bit of it flips, the shard is either read or given up with its samples saved, never refused for good."""
    file = path / "shard-0000" / "data.mdb"
    whole, names = file.read_bytes(), set(Store.open(path))
    start = description_in(path, whole)
    file.write_bytes(whole)
    damaged = 0
    for at in range(start, whole.index(b"}", start) + 1):
        for bit in range(8):
            with file.open("r+b") as handle:
                handle.seek(at)
                handle.write(bytes([whole[at] ^ 1 << bit]))
            store = Store.quietly(path)
            assert {type(problem) for problem in store.problems.values()} <= {CorruptError}, (at - start, bit)
            damaged += len(store.problems)
            if store.problems:
                samples = list(store.salvage(store.file("shard-0000")))
                assert {sample.sample_id for sample in samples} == names, (at - start, bit)
        with file.open("r+b") as handle:
            handle.seek(at)
            handle.write(whole[at : at + 1])
    assert damaged > 500


@pytest.mark.parametrize(("old", "new"), [(b'"format_version": 1', b'"format_version": 5'), (b'"run_id"', b'"ru._id"')])
def test_a_damaged_description_is_repaired(path, old, new):
    file = path / "shard-0000" / "data.mdb"
    file.write_bytes(file.read_bytes().replace(old, new))
    assert repair(path, check_store(path)).saved == ["s0", "s1", "s2"]
    assert check_store(path).ok


def test_what_lies_between_a_trees_entries_describes_nothing(path):
    """LMDB leaves there what the writer's memory held, such as another store's description."""
    file = path / "shard-0000" / "data.mdb"
    shard = Store.open(path).file("shard-0000")
    own = fingerprint_in(shard)
    other = own[::-1]
    whole = file.read_bytes()
    first = min(page for page, flags in headed_pages(whole) if flags == LEAF) * mmap.PAGESIZE
    (lower,) = struct.unpack_from("<H", whole, first + 12)
    with file.open("r+b") as handle:
        handle.seek(first + lower)
        handle.write(b'{"fingerprint": "' + other.encode() + b'"}')
    assert fingerprint_in(shard) == own == Store.open(path).manifest.fingerprint()


def test_another_stores_shard_stays_anothers(path, tmp_path):
    other = prepare_store(tmp_path / "o", a_manifest(samples_hash="other")).path
    write_samples(other, {"foreign": rows_of(9, 7, MANIFEST)})
    shutil.copytree(other / "shard-0000", path / "shard-0001")
    problem = Store.quietly(path).problems["shard-0001"]
    assert "belongs to a store of fingerprint" in str(problem)
    assert not isinstance(problem, CorruptError)
    with pytest.warns(UserWarning, match="belongs to a store"):
        assert compact(path).removed == []
    assert (path / "shard-0001" / "data.mdb").exists()
