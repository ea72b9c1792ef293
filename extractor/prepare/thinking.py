"""Thinking that stands inside the answer's text, between tags, instead of in a field of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass

from extractor.prepare.reject import Reject

_OPEN = re.compile(r"\s*<(think|thinking|thought|reasoning)>", re.IGNORECASE)
_LONE_CLOSE = "</think>"


@dataclass(frozen=True, slots=True)
class Split:
    """`tags[0] + thinking + tags[1] + content` is the text as it was. `tags[0]` is empty when the opening tag was part
    of the prompt, as servers of reasoning models leave it."""

    tags: tuple[str, str]
    thinking: str
    content: str


def split_inline(text: str) -> Split | None:
    """The thinking at the start of `text`, or None if there is none. Raises Reject when it is never closed."""
    opened = _OPEN.match(text)
    if opened is None:
        return _opened_in_prompt(text)
    close = f"</{opened[1]}>"
    at = text.find(close, opened.end())
    if at < 0:
        raise Reject("unclosed_thinking", f"{opened[0].strip()} is never closed by {close}")
    after = at + len(close)
    return Split((text[: opened.end()], close), text[opened.end() : at], text[after:])


def _opened_in_prompt(text: str) -> Split | None:
    if text.count(_LONE_CLOSE) != 1 or "<think>" in text:
        return None
    thinking, content = text.split(_LONE_CLOSE)
    return Split(("", _LONE_CLOSE), thinking, content)
