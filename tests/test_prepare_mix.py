"""Order, duplicates, draws and caps over several sources: a function of seed and content alone."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from prepare_cases import chat, prepare_files, rejects, samples, write_jsonl

from extractor.errors import InputError, UsageError
from extractor.prepare import run, spill
from extractor.prepare.assemble import Assembled
from extractor.prepare.capping import truncate
from extractor.prepare.spill import Place, bucket_of, pack, shuffle_key, unpack


@pytest.fixture
def data(tmp_path: Path) -> list[Path]:
    """Three sources of 60, 40 and 20 records; the last ten of b repeat records of a."""
    a = [chat(f"question {i}", f"answer {i}") for i in range(60)]
    b = [chat(f"frage {i}", f"antwort {i}") for i in range(30)] + a[:10]
    c = [chat(f"c {i}", "long " * (i + 1)) for i in range(20)]
    return [write_jsonl(tmp_path / f"{name}.jsonl", records) for name, records in (("a", a), ("b", b), ("c", c))]


def digest(out: Path) -> str:
    return hashlib.sha256((out / "samples.parquet").read_bytes()).hexdigest()


def ids(out: Path) -> list[str]:
    return [row["sample_id"] for row in samples(out)]


def test_bytes_depend_on_seed_and_content_alone(
    tmp_path: Path, data: list[Path], tiny_tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_files(tmp_path / "first", tiny_tokenizer_dir, *data)
    wanted = digest(tmp_path / "first")
    prepare_files(tmp_path / "other order", tiny_tokenizer_dir, *reversed(data))
    monkeypatch.setattr(run, "_CHUNK_RECORDS", 7)
    monkeypatch.setattr(run, "BUCKET_BYTES", 1000)
    prepare_files(tmp_path / "small chunks and buckets", tiny_tokenizer_dir, *data)
    prepare_files(tmp_path / "workers", tiny_tokenizer_dir, *data, workers=2)
    prepare_files(tmp_path / "seed", tiny_tokenizer_dir, *data, seed=1)
    assert digest(tmp_path / "other order") == digest(tmp_path / "small chunks and buckets") == wanted
    assert digest(tmp_path / "workers") == wanted
    assert ids(tmp_path / "seed") != ids(tmp_path / "first")
    assert sorted(ids(tmp_path / "seed")) == sorted(ids(tmp_path / "first"))


def test_the_order_is_pinned() -> None:
    """The shuffle must not change with a Python version, a machine or a release of ours."""
    keys = [shuffle_key(np.array([i], np.int32), 0) for i in range(5)]
    assert sorted(range(5), key=keys.__getitem__) == [4, 0, 2, 3, 1]
    assert keys[0].hex() == "67a3f57db121234c6ae70eb3654439af"


def test_sources_are_mixed(tmp_path: Path, data: list[Path], tiny_tokenizer_dir: Path) -> None:
    prepare_files(tmp_path / "out", tiny_tokenizer_dir, *data)
    order = [row["source"] for row in samples(tmp_path / "out")]
    assert Counter(order) == {"a": 60, "b": 30, "c": 20}
    assert set(order[:40]) == {"a", "b", "c"}
    rows = [row["origin"]["record"] for row in samples(tmp_path / "out") if row["source"] == "a"]
    assert rows != sorted(rows)


def test_duplicates_are_counted_once(tmp_path: Path, data: list[Path], tiny_tokenizer_dir: Path) -> None:
    report = prepare_files(tmp_path / "out", tiny_tokenizer_dir, *data)
    assert report["sources"]["b"]["records"] == {"read": 40, "kept": 30, "duplicate": 10, "dropped": {}, "rejected": {}}
    report = prepare_files(tmp_path / "all", tiny_tokenizer_dir, *data, dedupe=False)
    assert report["total"]["records"]["kept"] == 120
    assert len(set(ids(tmp_path / "all"))) == 120


def recipe(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mix.yaml"
    path.write_text(text)
    return path


def test_recipe_draws(tmp_path: Path, data: list[Path], tiny_tokenizer_dir: Path) -> None:
    mix = recipe(
        tmp_path, "sources: [{path: a.jsonl, take: 7}, {path: b.jsonl, fraction: 0.5}, {name: z, path: c.jsonl}]"
    )
    report = prepare_files(tmp_path / "out", tiny_tokenizer_dir, mix)
    assert {name: source["samples"]["kept"] for name, source in report["sources"].items()} == {"a": 7, "b": 15, "z": 20}
    assert report["sources"]["a"]["records"]["dropped"] == {"not_drawn": 53}
    drawn = [row["origin"]["record"] for row in samples(tmp_path / "out") if row["source"] == "a"]
    assert max(drawn) > 20  # not the first rows
    order = [row["source"] for row in samples(tmp_path / "out")]
    assert set(order[:7]) != {"a"}  # drawn samples do not gather at the front
    other = prepare_files(tmp_path / "seed", tiny_tokenizer_dir, mix, seed=5)
    assert other["sources"]["a"]["samples"]["kept"] == 7
    assert {r["origin"]["record"] for r in samples(tmp_path / "seed") if r["source"] == "a"} != set(drawn)


def test_recipe_weights_and_token_caps(tmp_path: Path, data: list[Path], tiny_tokenizer_dir: Path) -> None:
    text = "sources: [{path: a.jsonl, weight: 2}, {path: b.jsonl, weight: 3}, {path: c.jsonl, max_tokens: 500}]"
    report = prepare_files(tmp_path / "out", tiny_tokenizer_dir, recipe(tmp_path, text))
    kept = {name: source["samples"]["kept"] for name, source in report["sources"].items()}
    assert (kept["a"], kept["b"]) == (20, 30)
    assert 400 < report["sources"]["c"]["tokens"]["total"] <= 500


def test_recipe_maps_fields_and_caps_lengths(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    for folder, answer in (("x", "yes"), ("y", "never")):
        (tmp_path / folder).mkdir()
        question = {"turns": [{"role": "user", "content": "q"}]}
        write_jsonl(tmp_path / folder / "train.jsonl", [{"dialogue": question, "a": answer}])
    text = "{name: m, path: [x, y], format: qa, max_length: 25, map: {prompt: dialogue.turns, answer: a}}"
    prepare_files(tmp_path / "out", tiny_tokenizer_dir, recipe(tmp_path, f"sources: [{text}]"))
    lengths = {row["sample_id"]: (row["num_tokens"], sum(row["loss_mask"])) for row in samples(tmp_path / "out")}
    assert lengths == {"m/x/train.jsonl-0": (25, 4), "m/y/train.jsonl-0": (25, 5)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sources: [{path: none.jsonl}]", "nothing matches 'none.jsonl'"),
        ("sources: [{path: a.jsonl, takes: 3}]", "unknown key 'takes'; known are name, path"),
        ("sources: [{path: a.jsonl, take: 3, fraction: 0.5}]", "more than one of take, fraction, weight"),
        ("sources: [{path: a.jsonl, fraction: 2}]", "fraction .* is 2; allowed are numbers from 0 to 1"),
        ("sources: [{path: a.jsonl, take: true}]", "take .* is True; allowed are whole numbers"),
        ("sources: [{path: a.jsonl, format: csv}]", "has the format 'csv'; allowed are auto"),
        ("sources: {path: a.jsonl}", "must hold one key, sources, with a list"),
        ("sources: [", "can't be read"),
        ("sources: [{take: 1}]", "must be a mapping with a path"),
    ],
)
def test_recipe_errors(tmp_path: Path, data: list[Path], tiny_tokenizer_dir: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare_files(tmp_path / "out", tiny_tokenizer_dir, recipe(tmp_path, text))


def test_source_names(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        write_jsonl(tmp_path / name / "train.jsonl", [chat(name, "a")])
    report = prepare_files(tmp_path / "out", tiny_tokenizer_dir, tmp_path / "x/train.jsonl", tmp_path / "y/train.jsonl")
    assert set(report["sources"]) == {"x/train", "y/train"}
    with pytest.raises(UsageError, match=r"x/train.jsonl, .*x/train.jsonl would all be named 'x/train'"):
        prepare_files(tmp_path / "out", tiny_tokenizer_dir, tmp_path / "x/train.jsonl", tmp_path / "x/train.jsonl")
    with pytest.raises(InputError, match="does not exist; name a data file"):
        prepare_files(tmp_path / "out", tiny_tokenizer_dir, tmp_path / "gone.jsonl")


def test_a_datasets_folder(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    datasets = pytest.importorskip("datasets")
    records = [chat(f"q{i}", f"a{i}") for i in range(6)]
    datasets.Dataset.from_list(records).save_to_disk(str(tmp_path / "set"), num_shards=2)
    report = prepare_files(tmp_path / "out", tiny_tokenizer_dir, tmp_path / "set")
    assert report["sources"]["set"]["records"]["kept"] == 6
    assert {row["origin"]["file"] for row in samples(tmp_path / "out")} == {
        "data-00000-of-00002.arrow",
        "data-00001-of-00002.arrow",
    }


def test_overlong(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    """The tiny tokenizer has a token a byte: 24 tokens of prompt and turn, then the answer."""
    data = write_jsonl(tmp_path / "d.jsonl", [chat("q", "short"), chat("q", "l" * 50), chat("q" * 50, "never reached")])
    report = prepare_files(tmp_path / "cut", tiny_tokenizer_dir, data, max_length=40)
    rows = {row["sample_id"]: row for row in samples(tmp_path / "cut")}
    assert set(rows) == {"d-0", "d-1"}
    assert rows["d-1"]["num_tokens"] == 40
    assert rows["d-1"]["loss_mask"] == [0] * 20 + [1] * 20
    assert rows["d-1"]["segments"][-1] == {"kind": "response", "start": 20, "end": 40}
    assert report["total"]["samples"]["truncated"] == 1
    assert report["total"]["records"]["dropped"] == {"no_trained_token": 1}
    report = prepare_files(tmp_path / "drop", tiny_tokenizer_dir, data, max_length=40, overlong="drop")
    assert report["total"]["records"]["dropped"] == {"too_long": 2}
    assert [r["detail"] for r in rejects(tmp_path / "drop")] == [
        "72 tokens, allowed are 40",
        "84 tokens, allowed are 40",
    ]
    with pytest.raises(InputError, match="record 1 of d/d.jsonl has 72 tokens, over --max-length 40"):
        prepare_files(tmp_path / "error", tiny_tokenizer_dir, data, max_length=40, overlong="error")
    assert os.listdir(tmp_path / "error") == []


def test_truncation_keeps_prefix_mask_and_parts() -> None:
    sample = Assembled(
        np.arange(6, dtype=np.int32), np.array([0, 0, 1, 1, 0, 1], np.uint8), [("prompt", 0, 2), ("response", 2, 6)]
    )
    cut = truncate(sample, 3)
    assert (cut.token_ids.tolist(), cut.loss_mask.tolist()) == ([0, 1, 2], [0, 0, 1])
    assert (cut.segments, cut.truncated) == ([("prompt", 0, 2), ("response", 2, 3)], True)
    assert truncate(sample, 2).segments == [("prompt", 0, 2)]


def test_packed_samples_come_back() -> None:
    rng = np.random.default_rng(0)
    data = b""
    made = []
    for i in range(20):
        length = int(rng.integers(1, 50))
        ids = rng.integers(0, 2**31 - 1, length).astype(np.int32)
        sample = Assembled(
            ids, rng.integers(0, 2, length).astype(np.uint8), [("prompt", 0, 1), ("tool", 1, length)], 0, i % 2 == 0
        )
        place = Place(i, 2**31, 2**32 - 1, 3, 4)
        made.append((sample, place, shuffle_key(ids, 3)))
        data += pack(*made[-1])
    for (sample, place, key), back in zip(made, unpack(data), strict=True):
        assert (back.key, back.place, back.truncated) == (key, place, sample.truncated)
        assert np.array_equal(back.token_ids, sample.token_ids)
        assert np.array_equal(back.loss_mask, sample.loss_mask)
        kinds = [(spill.SEGMENT_KINDS[k], a, b) for k, a, b in back.segments.tolist()]
        assert kinds == sample.segments


def test_buckets_are_ranges_of_keys() -> None:
    keys = sorted(shuffle_key(np.array([i], np.int32), 0) for i in range(500))
    for count in (1, 3, 512):
        buckets = [bucket_of(key, count) for key in keys]
        assert buckets == sorted(buckets)
        assert max(buckets) < count
    assert bucket_of(b"\xff" * 16, 7) == 6


def test_row_groups_are_small(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    data = write_jsonl(tmp_path / "d.jsonl", ({"input_ids": [i % 256, i // 256, 7]} for i in range(2500)))
    prepare_files(tmp_path / "out", tiny_tokenizer_dir, data)
    file = pq.ParquetFile(tmp_path / "out" / "samples.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [1024, 1024, 452]


def test_nothing_left(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    """The earlier run's files stay as they were, all of them, and the reasons have a file of their own."""
    good, bad = write_jsonl(tmp_path / "g.jsonl", [chat("q", "a")]), write_jsonl(tmp_path / "b.jsonl", [{"seq_len": 3}])
    prepare_files(tmp_path / "out", tiny_tokenizer_dir, good)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(before) == {"report.json", "samples.parquet"}
    message = r"no sample is left of 1 records \(1 lengths_only\); each is listed in .*/failed-rejects.jsonl"
    with pytest.raises(InputError, match=message):
        prepare_files(tmp_path / "out", tiny_tokenizer_dir, bad)
    after = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert json.loads(after.pop("failed-rejects.jsonl"))["reason"] == "lengths_only"
    assert after == before
    prepare_files(tmp_path / "out", tiny_tokenizer_dir, good)
    assert sorted(os.listdir(tmp_path / "out")) == sorted(before)


def test_report(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    data = write_jsonl(tmp_path / "d.jsonl", [chat("q", "a" * n) for n in (1, 2, 3, 96)])
    total = prepare_files(tmp_path / "out", tiny_tokenizer_dir, data)["total"]
    counts = {"total": 190, "trained": 106, "prompt": 84, "thinking": 0, "response": 106, "tool": 0}
    assert total["tokens"] == counts  # 21 tokens around an answer are prompt, its end token is response
    assert total["length_percentiles"] == {"p50": 24, "p90": 118, "p95": 118, "p99": 118, "max": 118}


def test_any_integer_is_a_seed() -> None:
    ids = np.arange(5, dtype=np.int32)
    keys = {shuffle_key(ids, seed) for seed in (0, -1, 10**63, 10**64, 10**64 + 1, -(10**90))}
    assert len(keys) == 6
