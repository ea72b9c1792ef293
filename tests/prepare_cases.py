"""Runs of `prepare` for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from extractor.prepare import PrepareOptions, prepare


def write_jsonl(path: Path, records: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def prepare_files(out: Path, tokenizer: Path, *data: Path, **options: Any) -> dict[str, Any]:
    """Prepare in this process; returns the report, whose books must balance."""
    settings = {"workers": 1, **options}
    report = prepare(PrepareOptions(data=tuple(map(str, data)), tokenizer=tokenizer, out=out, **settings))
    for source in (report["total"], *report["sources"].values()):
        assert_balanced(source["records"])
    return report


def assert_balanced(records: dict[str, Any]) -> None:
    found = (
        records["kept"] + records["duplicate"] + sum(records["dropped"].values()) + sum(records["rejected"].values())
    )
    assert records["read"] == found, records


def samples(out: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(out / "samples.parquet").to_pylist())


def rejects(out: Path) -> list[dict[str, Any]]:
    """None are listed where there is no file."""
    file = out / "rejects.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def prepare_records(folder: Path, tokenizer: Path, records: Iterable[Any], **options: Any) -> list[dict[str, Any]]:
    """The samples of `records`, sorted by id."""
    data = write_jsonl(folder / "data.jsonl", records)
    prepare_files(folder / "out", tokenizer, data, **options)
    return sorted(samples(folder / "out"), key=lambda row: str(row["sample_id"]))


def parts(row: dict[str, Any]) -> list[tuple[str, list[int]]]:
    return [(s["kind"], row["input_ids"][s["start"] : s["end"]]) for s in row["segments"]]


def chat(*turns: str, **fields: Any) -> dict[str, Any]:
    """A record whose turns are by user and assistant in turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)], **fields}
