"""Paths given as strings: the same options as with Path, in every class that a script fills."""

from __future__ import annotations

from pathlib import Path

import pytest

from extractor import Config
from extractor.exports.job import ExportOptions
from extractor.planning import PlanConfig
from extractor.prepare.options import PrepareOptions

CASES = {
    Config: ({"samples": "a/s.parquet", "model": "m", "out": "o"}, {}),
    PlanConfig: ({"model": "m", "like": "l", "out": "o", "plot": "p.png"}, {"data": ("a", "b"), "look": ("x",)}),
    PrepareOptions: ({"tokenizer": "t", "out": "o", "chat_template": "c"}, {}),
    ExportOptions: ({"model": "m"}, {}),
}
MORE = {PrepareOptions: {"data": ("d",)}}


@pytest.mark.parametrize("options", CASES, ids=lambda options: options.__name__)
def test_strings_are_paths(options):
    single, several = CASES[options]
    more = MORE.get(options, {})
    as_paths = {name: Path(value) for name, value in single.items()}
    as_paths |= {name: tuple(map(Path, values)) for name, values in several.items()}
    made = options(**single, **several, **more)
    assert made == options(**as_paths, **more)
    assert all(isinstance(getattr(made, name), Path) for name in single)


def test_one_source_alone_is_one_source():
    """Not its letters."""
    assert PlanConfig(data="corpus.jsonl", model="m").data == (Path("corpus.jsonl"),)
    for data in ("chats.jsonl", Path("chats.jsonl"), ["chats.jsonl"]):
        assert PrepareOptions(data=data, tokenizer="t", out="o").data == ("chats.jsonl",)
