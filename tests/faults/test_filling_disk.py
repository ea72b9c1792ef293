"""A disk that fills up at any operation of a command: one line that says so, and no half-written files."""

from __future__ import annotations

import json

import pytest
from store_cases import a_store, many

CHAT = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}


def check(results, said):
    """All but the last fail, the last comes to its end."""
    assert len(results) > 20
    assert results[-1][0] in (0, 3)
    for code, text, _, _ in results[:-1]:
        assert (code, len(text.splitlines())) == (1, 1), text
        assert said in text


def test_prepare(preload, tmp_path, tiny_tokenizer_dir):
    records = [CHAT | {"n": n} for n in range(60)] + [{"seq_len": 3}] * 60
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    command = ("prepare", tmp_path / "data.jsonl", "--tokenizer", tiny_tokenizer_dir, "--workers", "1")
    results = preload("filling_disk.py", tmp_path / "out", *command, source="full_disk.c")
    check(results, "extractor prepare: no room in")
    assert {tuple(left) for _, _, left, _ in results[:-1]} == {()}, "nothing was written, as the message says"


@pytest.mark.parametrize("form", ["modelopt", "speculators"])
def test_export(preload, tmp_path, form):
    if form == "speculators":
        pytest.importorskip("datasets")
    store = a_store(tmp_path / "store", many(3))
    command = ("export", store.path, "--to", form)
    results = preload("filling_disk.py", tmp_path / "out", *command, source="full_disk.c")
    check(results, "extractor export: no room to write")
    for _, _, left, _ in results[:-1]:
        assert not [name for name in left if name.startswith(".") or "/." in name]
