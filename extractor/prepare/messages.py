"""One message in any known spelling -> the canonical message."""

from __future__ import annotations

import json
from typing import Any

from extractor.prepare.conversation import Message
from extractor.prepare.reject import Reject, a_turn
from extractor.prepare.thinking import split_inline
from extractor.prepare.toolcalls import parse_call_text, parse_calls

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "function_call": "assistant",
    "tool_call": "assistant",
}
_CALLROLES = ("function_call", "tool_call")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
_THINKING_PARTS = ("thinking", "reasoning", "reasoning.text")
_THINKING_KEYS = ("reasoning_content", "reasoning", "thinking")
_MEDIA = ("audio", "input_audio", "video", "video_url", "file", "document")
_ZERO_WEIGHTS = ("weight", "loss_weight", "train", "trainable")


def is_message(value: Any) -> bool:
    """Whether `value` looks like a message of any spelling."""
    return isinstance(value, dict) and ("role" in value or "from" in value)


def parse_message(message: Any, repairs: list[str]) -> Message:
    """Raises Reject for what is not a message, holds no text, or holds images or other media."""
    if not is_message(message):
        raise Reject("bad_message", f"expected an object with role and content, got {_brief(message)}")
    spelled = message.get("role", message.get("from"))
    role = ROLES.get(spelled.lower()) if isinstance(spelled, str) else None
    if role is None:
        raise Reject("bad_message", f"unknown role {_brief(spelled)}; known are {', '.join(ROLES)}")
    content = message.get("content", message.get("value"))
    if spelled == "developer":
        repairs.append("developer_to_system")
    if spelled in _CALLROLES:
        return Message(role, tool_calls=parse_call_text(_text(content, role)[0], repairs))
    text, thinking = _text(content, role)
    if role == "assistant":
        return _assistant(message, text, thinking, repairs)
    return Message(role, text, tool_call_id=_call_id(message), name=_name(message))


def _assistant(message: dict[str, Any], text: str, thinking: str, repairs: list[str]) -> Message:
    """An assistant message: its thinking may stand in a field, in a part, or between tags in the text."""
    thinking = thinking or _thinking_field(message)
    parsed = Message("assistant", text, thinking, tool_calls=parse_calls(message, repairs), trained=_weighs(message))
    split = None if thinking else split_inline(text)
    if split is not None:
        parsed.thinking, parsed.content, parsed.think_tags = split.thinking, split.content, split.tags
    if parsed.is_empty:
        repairs.append("empty_turn_untrained")
    return parsed


def _thinking_field(message: dict[str, Any]) -> str:
    for key in _THINKING_KEYS:
        value = message.get(key)
        if isinstance(value, str) and value:
            return value
        if value is not None and not isinstance(value, str):
            raise Reject("not_text", f"{key} is {_brief(value)}, expected text")
    details = message.get("reasoning_details")
    return _text(details, "assistant")[1] if isinstance(details, list) else ""


def _text(content: Any, role: str) -> tuple[str, str]:
    """(text, thinking) of a content that is text, a list of parts, or null where null is legal."""
    if isinstance(content, str):
        return content, ""
    if content is None and role in ("assistant", "tool"):
        return "", ""
    if content is None:
        raise Reject("null_content", f"the content of {a_turn(role)} is null")
    if isinstance(content, list):
        return _parts(content, role)
    if isinstance(content, dict) and role == "tool":
        return json.dumps(content, ensure_ascii=False), ""
    if isinstance(content, dict):
        return _parts([content], role)
    raise Reject("not_text", f"the content of {a_turn(role)} is {_brief(content)}, expected text")


def _parts(parts: list[Any], role: str) -> tuple[str, str]:
    if role == "tool" and not all(
        isinstance(part, str) or (isinstance(part, dict) and "type" in part) for part in parts
    ):
        return json.dumps(parts, ensure_ascii=False), ""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in parts:
        kind, text = _part(part)
        (thoughts if kind == "thinking" else texts).append(text)
    return "".join(texts), "".join(thoughts)


def _part(part: Any) -> tuple[str, str]:
    if isinstance(part, str):
        return "text", part
    if not isinstance(part, dict):
        raise Reject("not_text", f"a content part is {_brief(part)}, expected text")
    kind = part.get("type", "text")
    if "image" in str(kind) or part.get("image_url") or part.get("image"):
        raise Reject("image_content", f"a content part of type {kind!r}")
    if kind in _MEDIA:
        raise Reject("media_content", f"a content part of type {kind!r}")
    if kind in _THINKING_PARTS:
        return "thinking", _part_text(part, ("thinking", "text", "reasoning", "value"))
    if kind in _TEXT_PARTS:
        return "text", _part_text(part, ("text", "value", "content", "refusal"))
    raise Reject("not_text", f"a content part of the unknown type {kind!r}")


def _part_text(part: dict[str, Any], keys: tuple[str, ...]) -> str:
    value = next((part[key] for key in keys if part.get(key) is not None), "")
    if isinstance(value, list):  # some servers nest text parts in a thinking part
        return "".join(_part(inner)[1] for inner in value)
    if not isinstance(value, str):
        raise Reject("not_text", f"a text part holds {_brief(value)}")
    return value


def _weighs(message: dict[str, Any]) -> bool:
    """False when the record itself says that this turn is not to be trained on."""
    return not any(message.get(key) is not None and not message[key] for key in _ZERO_WEIGHTS)


def _call_id(message: dict[str, Any]) -> str | None:
    value = message.get("tool_call_id") or message.get("tool_call_ids")
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, str) and value else None


def _name(message: dict[str, Any]) -> str | None:
    name = message.get("name")
    return name if isinstance(name, str) and name else None


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
