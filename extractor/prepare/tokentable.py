"""Which token each id means, as the tokenizer's files say. Loaders hide contradictions: of two tokens that claim one id
one is silently given another id, and every sample made with it is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from extractor.errors import InputError

Claim = tuple[int, str, str]  # id, token, the file that says so


def token_table(hf: Any, path: Path) -> dict[int, str]:
    """id -> token. Raises InputError when two tokens claim one id, in the files or as loaded."""
    table: dict[int, tuple[str, str]] = {}
    for number, token, where in _claims(hf, path):
        other, elsewhere = table.setdefault(number, (token, where))
        if other != token:
            raise InputError(
                f"the tokenizer in {path} gives id {number} to two tokens: {other!r} ({elsewhere}) and {token!r} "
                f"({where}); an id must mean one token; repair the files"
            )
    return {number: token for number, (token, _) in table.items()}


def _claims(hf: Any, path: Path) -> Iterator[Claim]:
    config = _read(path / "tokenizer_config.json").get("added_tokens_decoder") or {}
    for number, token in config.items():
        yield int(number), str(token["content"] if isinstance(token, dict) else token), "tokenizer_config.json"
    model = _read(path / "tokenizer.json")
    for token in model.get("added_tokens") or ():
        yield int(token["id"]), str(token["content"]), "tokenizer.json, added_tokens"
    vocab = (model.get("model") or {}).get("vocab") or {}
    pairs = vocab.items() if isinstance(vocab, dict) else ((entry[0], i) for i, entry in enumerate(vocab))
    for token, number in pairs:
        yield int(number), str(token), "tokenizer.json, vocab"
    for token, number in hf.get_vocab().items():
        yield int(number), str(token), "as loaded"


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}
