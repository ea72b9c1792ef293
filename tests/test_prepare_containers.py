"""Files of every container, damaged ones included: every record is found, none twice, none lost."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from prepare_cases import chat

from extractor.prepare.containers import RecordFile
from extractor.prepare.jsontext import Raw, parse
from extractor.prepare.reject import Reject

RECORDS = [chat(f"q{i}", f"a{i} \u2028\u0085 \u00e9 \U0001f600") for i in range(7)]
LINES = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS)


def read(path: Path, max_bytes: int = 1 << 20) -> list[tuple[int, Any]]:
    """(number, value or the reason why there is none) of every record."""
    return [(raw.number, _value(raw)) for raw in RecordFile(path, max_bytes)]


def _value(raw: Raw) -> Any:
    try:
        return parse(raw)
    except Reject as reject:
        return reject.reason


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


NUMBERED = list(enumerate(RECORDS))
TEXTS = {
    "lines": LINES,
    "no last line end": LINES.rstrip("\n"),
    "crlf and a bom": "\ufeff" + LINES.replace("\n", "  \r\n"),
    "array": json.dumps(RECORDS),
    "indented array": json.dumps(RECORDS, indent=1),
    "array with a bom": "\ufeff" + json.dumps(RECORDS, indent=4, ensure_ascii=False),
    "objects over lines": "\n".join(json.dumps(record, indent=2) for record in RECORDS),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_json_layouts(tmp_path: Path, text: str) -> None:
    assert read(write(tmp_path / "x", text)) == NUMBERED


def test_compression(tmp_path: Path) -> None:
    assert read(write(tmp_path / "x.gz", gzip.compress(LINES.encode()))) == NUMBERED
    frames = zstandard.compress(LINES[:100].encode()) + zstandard.compress(LINES[100:].encode())
    assert read(write(tmp_path / "x.zst", frames)) == NUMBERED
    assert read(write(tmp_path / "y.zst", zstandard.compress(TEXTS["indented array"].encode()))) == NUMBERED


def test_bare_conversations(tmp_path: Path) -> None:
    lists = [record["messages"] for record in RECORDS]
    lines = "".join(json.dumps(messages) + "\n" for messages in lists)
    assert read(write(tmp_path / "many", lines)) == list(enumerate(lists))
    assert read(write(tmp_path / "one line", json.dumps(lists[0]))) == [(0, lists[0])]
    assert read(write(tmp_path / "one", json.dumps(lists[0], indent=1))) == [(0, lists[0])]
    assert read(write(tmp_path / "array", json.dumps(lists, indent=1))) == list(enumerate(lists))


def test_one_object_is_one_record(tmp_path: Path) -> None:
    assert read(write(tmp_path / "x", json.dumps(RECORDS[0], indent=2))) == NUMBERED[:1]


def test_tables(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(RECORDS)
    pq.write_table(table, tmp_path / "x.parquet")
    assert read(tmp_path / "x.parquet") == NUMBERED
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    assert read(tmp_path / "x.arrow") == NUMBERED
    with pa.OSFile(str(tmp_path / "f.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert read(tmp_path / "f.arrow") == NUMBERED


def test_columns_that_are_null_are_absent(tmp_path: Path) -> None:
    records = [{"prompt": "q", "response": "a"}, {"input_ids": [1]}]
    columns = {"prompt": ["q", None], "response": ["a", None], "input_ids": [None, [1]]}
    pq.write_table(pa.table(columns), tmp_path / "x")
    assert read(tmp_path / "x") == list(enumerate(records))


def test_damaged_lines_harm_themselves_only(tmp_path: Path) -> None:
    good = json.dumps(RECORDS[0]).encode()
    lines = [
        good,
        b'{"a": "caf\xe9"}',
        b"",
        b'{"cut": "o',
        b"{'repr': 1}",
        good + good,
        b'{"x": NaN}',
        b"\xff\xfe{}",
        good,
    ]
    found = read(write(tmp_path / "x", b"\n".join(lines)))
    assert [number for number, _ in found] == [0, 1, 3, 4, 5, 6, 7, 8]  # line 2 is blank
    assert [value for _, value in found if isinstance(value, str)] == [
        "invalid_utf8",
        "broken_json",
        "broken_json",
        "broken_json",
        "invalid_utf8",
    ]
    assert found[0][1] == found[-1][1] == RECORDS[0]


def test_offsets_find_the_records(tmp_path: Path) -> None:
    for text in TEXTS.values():
        content = text.encode()
        for raw in RecordFile(write(tmp_path / "x", content), 1 << 20):
            assert raw.offset is not None
            found = json.JSONDecoder().raw_decode(content[raw.offset :].decode())[0]
            assert found == RECORDS[raw.number]


def test_a_line_larger_than_memory_allows(tmp_path: Path) -> None:
    """300 MB on one line, packed: it is passed over in pieces, and what follows is read."""
    with gzip.open(tmp_path / "x.gz", "wb", compresslevel=1) as file:
        file.write(b'{"prompt": "')
        for _ in range(300):
            file.write(b"x" * (1 << 20))
        file.write(b'", "response": "a"}\n{"after": 1}\n')
    first, second = RecordFile(tmp_path / "x.gz", 1 << 20)
    assert first.problem is not None
    assert first.problem[0] == "record_too_large"
    assert "a line of 314572832 bytes" in first.problem[1]
    assert (second.number, parse(second)) == (1, {"after": 1})
    assert second.offset == 314572832


def test_array_broken_in_the_middle(tmp_path: Path) -> None:
    text = json.dumps(RECORDS, indent=1)
    cut = text[: text.index("q4")]
    assert read(write(tmp_path / "cut", cut)) == [*NUMBERED[:4], (4, "unreadable")]
    assert read(write(tmp_path / "broken", text.replace('"a4', "a4", 1))) == [*NUMBERED[:4], (4, "unreadable")]


def test_array_with_bytes_that_are_not_text(tmp_path: Path) -> None:
    content = json.dumps(RECORDS, indent=1).encode().replace(b"q4", b"\xe9\xff")
    assert read(write(tmp_path / "x", content)) == [*NUMBERED[:4], (4, "invalid_utf8"), *NUMBERED[5:]]


PACK = {"gz": gzip.compress, "zst": zstandard.compress}


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.999])
def test_every_line_before_the_cut_is_there(tmp_path: Path, kind: str, share: float) -> None:
    """Up to a megabyte of lines before the cut went with it, and of zstd's nobody was told that there was one."""
    rng = np.random.default_rng(0)
    lines = [json.dumps({"i": i, "x": rng.integers(0, 10**9, 20).tolist()}) + "\n" for i in range(10_000)]
    packed = PACK[kind]("".join(lines).encode())
    cut = packed[: int(len(packed) * share)]
    whole = _unpacked(kind, cut).count(b"\n")
    assert 0 < whole < len(lines)
    found = read(write(tmp_path / f"x.{kind}", cut))
    assert [value["i"] for _, value in found[:whole]] == list(range(whole))
    assert found[-1][1] == "unreadable"
    assert len(found) - whole in (1, 2)  # a line that was cut through is a record of its own


def _unpacked(kind: str, packed: bytes) -> bytes:
    decoder = zlib.decompressobj(wbits=31) if kind == "gz" else zstandard.ZstdDecompressor().decompressobj()
    return decoder.decompress(packed)


@pytest.mark.parametrize("cut", [10, 60, -9])
def test_cut_compression_keeps_what_came_before(tmp_path: Path, cut: int) -> None:
    lines = "".join(json.dumps({"i": i, "x": "y" * (i % 97)}) + "\n" for i in range(5000))
    found = read(write(tmp_path / "x.gz", gzip.compress(lines.encode())[:cut]))
    assert found[-1][1] in ("unreadable", "broken_json")
    assert all(value["i"] == number for number, value in found[:-2])


def test_cut_parquet_is_one_reject(tmp_path: Path) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(RECORDS), sink)
    assert read(write(tmp_path / "x", sink.getvalue()[:-20])) == [(0, "unreadable")]


def test_deep_nesting_and_huge_numbers(tmp_path: Path) -> None:
    deep, huge = "[" * 100_000 + "]" * 100_000, '{"x": ' + "9" * 5000 + "}"
    found = read(write(tmp_path / "x", f'{{"a": 1}}\n{deep}\n{huge}\n{{"b": 2}}\n'))
    assert found == [(0, {"a": 1}), (1, "broken_json"), (2, "broken_json"), (3, {"b": 2})]


def test_empty_files(tmp_path: Path) -> None:
    for content in ("", "\n\n", "[]", "  ", "\ufeff"):
        assert read(write(tmp_path / "x", content)) == []


VALUES = st.recursive(
    st.none() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abé", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(st.text("xyz", max_size=3), VALUES, max_size=3), min_size=1, max_size=6),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.sampled_from(["lines", "array"]),
)
def test_any_records_survive(
    tmp_path_factory: pytest.TempPathFactory, records: Any, indent: Any, escape: bool, layout: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    if layout == "array":
        text = json.dumps(records, indent=indent, ensure_ascii=escape)
    else:
        text = "\n".join(json.dumps(record, ensure_ascii=escape) for record in records)
    assert read(write(path, text)) == list(enumerate(records))
