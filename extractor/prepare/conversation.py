"""The canonical forms of a record: a conversation, a text as the server wrote it, or token ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

DEFAULT_TAGS = ("<think>\n", "\n</think>\n\n")


@dataclass(slots=True)
class ToolCall:
    """`arguments` stay as the record has them: JSON text or an object."""

    name: str
    arguments: str | dict[str, Any]
    call_id: str | None = None


@dataclass(slots=True)
class Message:
    """`think_tags` are the strings around `thinking` where the template has no place of its own for it."""

    role: str
    content: str = ""
    thinking: str = ""
    think_tags: tuple[str, str] = DEFAULT_TAGS
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None
    name: str | None = None
    trained: bool = True

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.thinking or self.tool_calls)


@dataclass(slots=True)
class Conversation:
    """`repairs` names each stated rule that was applied."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RawText:
    """Text exactly as the server read and wrote it. `prompt` is rendered text, or the messages before the answer.
    `finished` is False when generation stopped at a length limit, so that no end token follows."""

    prompt: str | Conversation
    generated: str
    finished: bool = True
    repairs: list[str] = field(default_factory=list)


@dataclass(slots=True)
class TokenRecord:
    """`token_ids` [T] int32; `loss_mask` [T] uint8 or None; `segments` (kind, start, end) or None."""

    token_ids: np.ndarray
    loss_mask: np.ndarray | None = None
    segments: list[tuple[str, int, int]] | None = None


Record = Conversation | RawText | TokenRecord
