"""Lengths out of every kind of file, each parser against the slowest one, and files that are not what they seem."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extractor.budget import text_files
from extractor.budget.flat_lines import flat_lengths
from extractor.budget.records import parse_lines
from extractor.budget.sources import find_sources, read_sources
from extractor.budget.tally import Tally
from extractor.budget.text_files import read_text
from extractor.errors import InputError
from extractor.samples import write_samples


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    flat_lengths(b'{"seq_len": 1}\n', "seq_len")  # seconds without a cache, which hypothesis would call too slow


def read(*paths: Path) -> Tally:
    return read_sources(find_sources(paths))


def lengths(tally: Tally) -> dict[str, list[int]]:
    return {name: np.repeat(c.lengths, c.counts).tolist() for name, c in tally.lengths().items()}


def write(path: Path, *lines: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


# --- one file of each kind


@pytest.mark.parametrize(
    "record",
    [
        {"seq_len": 3},
        {"id": "a", "seq_len": 3, "input_ids": [1]},
        {"num_tokens": 3},
        {"input_ids": [7, 8, 9], "loss_mask": [1, 1, 1]},
        {"token_ids": [7, 8, 9]},
        {"tokens": [7, 8, 9]},
        {"tokens": 3},
        {"seq_len": None, "input_ids": [7, 8, 9]},
        {"meta": {"seq_len": 99}, "note": 'a "seq_len": 5 in text', "seq_len": 3},
        [7, 8, 9],
    ],
)
def test_a_record_has_the_length_of_its_first_usable_field(tmp_path, record):
    file = write(tmp_path / "a.jsonl", record, record)
    assert lengths(read(file)) == {"a": [3, 3]}


@pytest.mark.parametrize("pack", [gzip.compress, lambda data: pa.compress(data, "zstd", asbytes=True)])
def test_compressed_lines(tmp_path, pack):
    file = tmp_path / ("a.jsonl.gz" if pack is gzip.compress else "a.jsonl.zst")
    file.write_bytes(pack(b'{"seq_len": 3}\n{"seq_len": 4}'))
    assert lengths(read(file)) == {"a": [3, 4]}


def test_byte_order_mark_carriage_returns_blank_lines_and_no_last_newline(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"seq_len": 3}\r\n\r\n{"seq_len": 4}\r\n{"seq_len": 5}')
    tally = read(file)
    assert lengths(tally) == {"a": [3, 4, 5]}
    assert tally.rejected == 0


def test_a_json_array_of_records(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps([{"input_ids": [1, 2]}, {"text": "raw"}, {"seq_len": 5}], indent=1))
    tally = read(file)
    assert lengths(tally) == {"a": [2, 5]}
    assert [(r.record, r.reason[:11]) for r in tally.rejects] == [(2, "has neither")]


def test_a_samples_file_names_its_sources(tmp_path):
    rows = [
        {"sample_id": f"{s}-{i}", "source": s, "input_ids": [1] * n}
        for i, (s, n) in enumerate([("B", 5), ("A", 2)] * 3)
    ]
    rows.append({"sample_id": "x", "source": None, "input_ids": [1] * 7})
    write_samples(tmp_path / "samples.parquet", rows)
    (tmp_path / "report.json").write_text("{}")
    (tmp_path / "rejects.jsonl").write_text("{}\n")
    assert lengths(read(tmp_path)) == {"A": [2, 2, 2], "B": [5, 5, 5], tmp_path.name: [7]}
    assert lengths(read(tmp_path / "samples.parquet")) == {"A": [2, 2, 2], "B": [5, 5, 5], "samples": [7]}


def test_a_stored_count_that_disagrees_with_the_ids_is_not_believed(tmp_path):
    table = pa.table({"num_tokens": [3, 3], "input_ids": pa.array([[1, 2, 3], [4, 5]])})
    pq.write_table(table, tmp_path / "a.parquet")
    assert lengths(read(tmp_path / "a.parquet")) == {"a": [2, 3]}


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int64())])
def test_ids_in_parquet_and_arrow(tmp_path, kind):
    table = pa.table({"input_ids": pa.array([[1, 2, 3], [4], None, []], kind)})
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=2)
    with pa.ipc.new_stream(tmp_path / "s.arrow", table.schema) as stream:
        stream.write_table(table)
    with pa.ipc.new_file(tmp_path / "f.arrow", table.schema) as file:
        file.write_table(table)
    for name in ("p.parquet", "s.arrow", "f.arrow"):
        tally = read(tmp_path / name)
        assert lengths(tally) == {name[0]: [1, 3]}
        assert [(r.record, r.reason) for r in tally.rejects] == [(3, "has no length (null)"), (4, "has no tokens")]


@pytest.mark.parametrize("bad", [-5, 2**40])
def test_an_impossible_length_in_a_table_is_named(tmp_path, bad):
    pq.write_table(pa.table({"seq_len": pa.array([3, bad, 4], pa.int64())}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=rf"a.parquet:2 has an? (negative|absurd) length: {bad} tokens"):
        read(tmp_path / "a.parquet")


# --- folders


def test_a_folder_of_datasets_gives_one_source_each(tmp_path):
    write(tmp_path / "A1" / "tokenized_data.jsonl", {"seq_len": 1})
    write(tmp_path / "A1" / "raw.jsonl", {"text": "not read, tokenized_data stands beside it"})
    write(tmp_path / "B1" / "train.jsonl", {"seq_len": 2})
    write(tmp_path / "B1" / "test.jsonl", {"seq_len": 3})
    write(tmp_path / "C1" / "data" / "x.jsonl", {"seq_len": 4})
    write(tmp_path / ".cache" / "x.jsonl", {"seq_len": 99})
    assert lengths(read(tmp_path)) == {"A1": [1], "B1": [2, 3], "C1": [4]}
    assert lengths(read(tmp_path / "A1", tmp_path / "B1")) == {"A1": [1], "B1": [2, 3]}


def test_equal_names_from_two_places_stay_apart(tmp_path):
    for place in ("x", "y"):
        write(tmp_path / place / "A1" / "tokenized_data.jsonl", {"seq_len": 1})
    assert set(lengths(read(tmp_path / "x", tmp_path / "y"))) == {"x/A1", "y/A1"}


def test_a_file_of_a_dataset_has_the_name_of_its_folder(tmp_path):
    file = write(tmp_path / "A1" / "tokenized_data.jsonl", {"seq_len": 1})
    assert lengths(read(file)) == {"A1": [1]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "none", "does not exist"),
        (lambda p: p, "holds no datasets"),
        (lambda p: (p / "A1").mkdir() or p, "dataset folder .*A1 holds no data"),
        (
            lambda p: write(p / "a.jsonl", {"text": "hi"}, {"text": "ho"}),
            "none of the 2 records of .*source a.*has neither",
        ),
        (lambda p: write(p / "a.jsonl"), "holds no records"),
        (lambda p: write(p / "a.parquet", "PAR1 not"), "not a readable Parquet file"),
        (lambda p: write(p / "a.arrow", "not arrow"), "not a readable Arrow file"),
        (lambda p: write(p / "a.jsonl.gz", "not gzip"), "can't be read"),
        (lambda p: write(p / "a.json", '[{"seq_len": 1}, '), "not a JSON array"),
    ],
)
def test_bad_input_is_named(tmp_path, make, message):
    with pytest.raises(InputError, match=message):
        read(make(tmp_path))


def test_a_table_without_a_length_names_its_columns(tmp_path):
    pq.write_table(pa.table({"text": ["a"], "score": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="no column with a length; expected seq_len.*found text, score"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not JSON"),
        ('{"seq_len": 1}{"seq_len": 2}', "is not JSON"),
        ('{"seq_len": "12"}', "seq_len is text, not an integer"),
        ('{"seq_len": 1.5}', "seq_len is a fraction"),
        ('{"seq_len": true}', "seq_len is true or false"),
        ('{"seq_len": 0}', "has no tokens"),
        ('{"seq_len": null}', "has neither"),
        ('{"input_ids": []}', "has no tokens"),
        ('{"input_ids": [[1, 2]]}', "not a flat list"),
        ('{"text": "raw"}', "has neither seq_len or num_tokens"),
        ('"text"', "is text, not an object"),
        ("7", "is a number, not an object"),
        ("[" * 100_000, "is not JSON"),
        (b'{"id": "\xff", "seq_len": 3}', "is not UTF-8"),
    ],
)
@pytest.mark.parametrize("flat_from", [0, 1 << 40])
def test_bad_lines_are_named_and_good_ones_kept(tmp_path, monkeypatch, line, reason, flat_from):
    monkeypatch.setattr(text_files, "FLAT_FROM_BYTES", flat_from)
    file = tmp_path / "a.jsonl"
    bad = line if isinstance(line, bytes) else line.encode()
    file.write_bytes(b'{"seq_len": 5}\n' + bad + b'\n{"seq_len": 6}\n')
    tally = read(file)
    assert lengths(tally) == {"a": [5, 6]}
    assert tally.rejected == 1
    assert tally.rejects[0].record == 2
    assert reason in tally.rejects[0].reason


def test_record_numbers_are_right_behind_fast_blocks(tmp_path, monkeypatch):
    """Blocks of about 100 bytes: most are read by columns, and the bad line is still numbered by the whole file."""
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 100)
    for flat_from in (0, 1 << 40):
        monkeypatch.setattr(text_files, "FLAT_FROM_BYTES", flat_from)
        good = [json.dumps({"id": f"s{i}", "seq_len": i + 1}) for i in range(300)]
        file = write(tmp_path / "a.jsonl", *good[:217], "oops", *good[217:])
        tally = read(file)
        assert lengths(tally) == {"a": list(range(1, 301))}
        assert [r.record for r in tally.rejects] == [218]


def test_every_reject_is_counted_and_the_first_thousand_named(tmp_path):
    tally = read(write(tmp_path / "a.jsonl", {"seq_len": 1}, *["bad"] * 1500))
    assert (tally.rejected, len(tally.rejects), tally.samples) == (1500, 1000, 1)


# --- the fast parsers against json

JSON_KEYS = st.sampled_from(["seq_len", "id", "seq", "seq_len2", ""])
JSON_VALUES = st.one_of(
    st.integers(-5, 10**6),
    st.integers(0, 2**70),
    st.text(max_size=5),
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.lists(st.integers(), max_size=2),
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : ")])
RECORDS = st.dictionaries(JSON_KEYS, JSON_VALUES, max_size=4)
PLAIN = st.fixed_dictionaries({"seq_len": st.integers(1, 10**6), "id": st.text("abcXYZ019-_ {}:,", max_size=9)})


@given(st.lists(st.tuples(RECORDS | PLAIN, SEPARATORS), min_size=1, max_size=5))
def test_the_flat_parser_agrees_with_json_or_steps_aside(records):
    lines = [json.dumps(record, separators=separators) for record, separators in records]
    fast = flat_lengths("".join(line + "\n" for line in lines).encode(), "seq_len")
    if fast is not None:
        assert fast.tolist() == [json.loads(line)["seq_len"] for line in lines]


@given(st.lists(st.tuples(PLAIN, SEPARATORS), min_size=1, max_size=5))
def test_the_flat_parser_takes_plain_lines(records):
    lines = [json.dumps(record, separators=separators) for record, separators in records]
    fast = flat_lengths("".join(line + "\r\n" for line in lines).encode(), "seq_len")
    assert fast is not None
    assert fast.tolist() == [record["seq_len"] for record, _ in records]


@given(st.binary(max_size=60))
def test_the_flat_parser_survives_any_bytes(data):
    """What it accepts, json accepts with the same result."""
    block = b'{"seq_len": ' + data.replace(b"\n", b"") + b"\n"
    fast = flat_lengths(block, "seq_len")
    if fast is not None:
        values, rejects = parse_lines(block, Path("x"), 1)
        assert not rejects
        assert fast.tolist() == values.tolist()


@pytest.mark.parametrize(
    "line",
    [
        '{"seq_len": 01}', '{"seq_len": 1,}', '{"seq_len" 1}', '{"seq_len": 1} x', '{"seq_len": 1', '{,"seq_len": 1}',
        '{"seq_len": 1, "seq_len": 2}', '{"id": "a\\"b", "seq_len": 1}', '{"seq_len": -1}', '{"seq_len": 1e3}', "{}",
        '{"seq_len": 9999999999999999999}', '{"id": "seq_len"}', '{"x": {"seq_len": 1}}', "",
    ],
)  # fmt: skip
def test_the_flat_parser_leaves_everything_else_to_json(line):
    assert flat_lengths(line.encode() + b"\n", "seq_len") is None


@given(st.lists(RECORDS | PLAIN, min_size=1, max_size=8))
def test_all_parsers_together_equal_json_alone(tmp_path_factory, records):
    file = tmp_path_factory.getbasetemp() / "all.jsonl"
    write(file, *records)
    block = file.read_bytes()
    tally = Tally()

    def alone() -> object:
        values, rejects = parse_lines(block, file, 1)
        return sorted(values.tolist()), rejects

    def together() -> object:
        read_text(file, "s", tally)
        return lengths(tally)["s"], tally.rejects

    assert outcome(together) == outcome(alone)


def outcome(call: Callable[[], object]) -> object:
    """What `call` returns, or the text of its InputError."""
    try:
        return call()
    except InputError as error:
        return str(error)
