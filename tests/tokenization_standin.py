"""The tokenizer class of the stand-in for Kimi-K2.5: ranks from tiktoken.model, special tokens from the config.

Loaded from a tokenizer folder by transformers, as the real one is.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import tiktoken
from transformers import PreTrainedTokenizer

_PATTERN = r"[\p{L}]+|[\p{N}]{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"


class StandInTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
    vocab_files_names = {"vocab_file": "tiktoken.model"}  # noqa: RUF012
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, vocab_file: str, added_tokens_decoder: Any = None, **options: Any) -> None:
        lines = Path(vocab_file).read_text().split("\n")
        self.ranks = {base64.b64decode(token): int(number) for token, number in (x.split() for x in lines if x)}
        self.special = {str(token): number for number, token in (added_tokens_decoder or {}).items()}
        self.model = tiktoken.Encoding(
            "stand-in", pat_str=_PATTERN, mergeable_ranks=self.ranks, special_tokens=self.special
        )
        self.names = {number: token.decode("latin-1") for token, number in self.ranks.items()}
        super().__init__(added_tokens_decoder=added_tokens_decoder, **options)

    @property
    def vocab_size(self) -> int:
        return self.model.n_vocab

    def get_vocab(self) -> dict[str, int]:
        return {token: number for number, token in self.names.items()} | self.special

    def encode(self, text: str, allow_special_tokens: bool = True, **options: Any) -> list[int]:
        if options:
            return super().encode(text, **options)
        return self.model.encode(text, allowed_special="all" if allow_special_tokens else set(), disallowed_special=())

    def decode(self, token_ids: Any, **options: Any) -> str:
        return self.model.decode([token_ids] if isinstance(token_ids, int) else list(token_ids))

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        return [self.names[number] for number in self.model.encode(text, disallowed_special=())]

    def _convert_token_to_id(self, token: str) -> int:
        return self.get_vocab().get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return self.names.get(index, "")
