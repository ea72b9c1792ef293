"""The tokenizer: text runs -> ids, and where in the ids a part of the text ends."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extractor.errors import InputError
from extractor.prepare.reject import Reject
from extractor.prepare.tokentable import token_table

_FILES = ("tokenizer*", "tokenization*.py", "*.model", "*.tiktoken", "tekken.json", "vocab*", "merges.txt")
_NEAR = 8  # a cut through a merged token moves the boundary by a token or two; beyond this it is not the same text


@dataclass(slots=True)
class Encoded:
    """Ids of one run; `fast` is the encoding that knows character positions, where there is one."""

    ids: list[int]
    fast: Any = None


class Tokenizer:
    """A tokenizer of transformers, fast or slow. `added` maps all added tokens to ids, `special` those flagged so."""

    def __init__(self, hf: Any, path: Path) -> None:
        """Raises InputError when two tokens claim one id."""
        self.hf = hf
        self.path = path
        self.backend: Any = getattr(hf, "backend_tokenizer", None)
        if self.backend is not None:
            self.backend.no_truncation()  # tokenizer.json may carry limits of its training run
            self.backend.no_padding()
        self.names = token_table(hf, path)
        tokens = hf.added_tokens_decoder
        self.added = {str(token): number for number, token in tokens.items()}
        self.special = {str(token): number for number, token in tokens.items() if token.special}
        self.renders_itself = "apply_chat_template" in vars(type(hf))
        self._plain_encode = "allow_special_tokens" in inspect.signature(hf.encode).parameters

    def encode(self, texts: Sequence[str], positions: Sequence[bool] = ()) -> list[Encoded]:
        """Each text apart, with the tokenizer's own special tokens recognised and none added around. Only texts whose
        `positions` is True know character positions, which a fast tokenizer takes longer to track."""
        if self.backend is not None:
            return self._encode_fast(texts, positions or [False] * len(texts))
        if self._plain_encode:  # tiktoken-style: further arguments would send it through another, slower path
            return [Encoded(list(self.hf.encode(text))) for text in texts]
        return [Encoded(list(self.hf.encode(text, add_special_tokens=False))) for text in texts]

    def _encode_fast(self, texts: Sequence[str], positions: Sequence[bool]) -> list[Encoded]:
        tracked = [text for text, wanted in zip(texts, positions, strict=True) if wanted]
        others = [text for text, wanted in zip(texts, positions, strict=True) if not wanted]
        with_positions = iter(self.backend.encode_batch(tracked, add_special_tokens=False))
        without = iter(self.backend.encode_batch_fast(others, add_special_tokens=False))
        return [
            Encoded(encoding.ids, encoding if wanted else None)
            for wanted in positions
            for encoding in [next(with_positions if wanted else without)]
        ]

    def decode(self, ids: Sequence[int]) -> str:
        if self.backend is not None:
            return str(self.backend.decode(ids, skip_special_tokens=False))
        return str(self.hf.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def normalized(self, text: str) -> str:
        """`text` as the tokenizer sees it (some compose accents first)."""
        normalizer = None if self.backend is None else self.backend.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def boundary(self, encoded: Encoded, text: str, at: int) -> int:
        """The number of tokens that hold `text[:at]`; a token across the cut belongs to what stands before it."""
        if at >= len(text):
            return len(encoded.ids)
        if encoded.fast is not None:
            return _fast_boundary(encoded.fast, at, len(text))
        return self._slow_boundary(encoded.ids, text, at) if at else 0

    def _slow_boundary(self, ids: list[int], text: str, at: int) -> int:
        """Without character positions: the shortest run of ids that decodes to a text beginning with `text[:at]`."""
        head = text[:at]
        guess = len(self.encode([head])[0].ids)
        for count in range(max(0, guess - _NEAR), min(len(ids), guess + _NEAR) + 1):
            if self.decode(ids[:count]).startswith(head):
                return count
        raise Reject("not_exact", f"no token ends near character {at} of a generated text")


def _fast_boundary(encoding: Any, at: int, length: int) -> int:
    for position in range(at, length):
        token = encoding.char_to_token(position)
        if token is not None:
            return int(token) + int(encoding.offsets[token][0] < at)
    return len(encoding.ids)


def load_tokenizer(path: Path, chat_template: Path | None = None, trust_remote_code: bool = False) -> Tokenizer:
    """Raises InputError for a folder without a usable tokenizer."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the processes of `prepare` already use every core
    from transformers import AutoTokenizer

    if not path.is_dir():
        found = "is a file, not a folder" if path.exists() else "does not exist"
        raise InputError(f"tokenizer folder {path} {found}; pass the folder of a Hugging Face model or tokenizer")
    _require_files(path)
    try:
        hf = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        raise InputError(
            f"no tokenizer can be loaded from {path}: {_first_line(error)}{_hint(path, trust_remote_code)}"
        ) from error
    if chat_template is not None:
        hf.chat_template = _read_template(chat_template)
    return Tokenizer(hf, path)


def _require_files(path: Path) -> None:
    """Said before transformers would: it guesses at packages that may be missing."""
    if any(next(path.glob(pattern), None) for pattern in _FILES):
        return
    there = sorted(entry.name for entry in path.iterdir())
    found = ", ".join(there[:4]) + (f" and {len(there) - 4:,} more" if len(there) > 4 else "")
    raise InputError(
        f"{path.resolve()} holds no tokenizer: looked for {', '.join(_FILES)}, found {found or 'an empty folder'}; "
        "pass the folder of the target model or its tokenizer with --tokenizer"
    )


def _hint(path: Path, trusted: bool) -> str:
    own_code = any(path.glob("*.py")) and not trusted
    return "; it brings Python code of its own: read it, then pass --trust-remote-code" if own_code else ""


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"chat template {path} can't be read: {error}; pass a Jinja file") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
