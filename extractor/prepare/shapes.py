"""A record of any known shape -> conversations, raw text or token ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from extractor.prepare.conversation import Conversation, Message, RawText, Record, TokenRecord
from extractor.prepare.messages import is_message, parse_message
from extractor.prepare.reject import Reject, json_kind
from extractor.prepare.toolcalls import link_results, parse_tools

_LISTS = ("messages", "conversations", "conversation", "history", "traj", "trajectory", "dialogue", "dialog", "turns")
_PROMPTS = ("prompt", "question", "query", "problem")
_ANSWERS = ("response", "answer", "completion", "output", "solution", "canonical_solution")
_IDS = ("input_ids", "token_ids")
_LENGTHS = ("seq_len", "num_tokens", "length")
_MEDIA = {"images": "image_content", "image": "image_content", "videos": "media_content", "audios": "media_content"}


def parse_record(record: Any, data_format: str = "auto") -> list[Record]:
    """The samples-to-be of one record (more than one only for `instances`). Raises Reject."""
    if isinstance(record, list):
        record = {"messages": record}
    if not isinstance(record, dict):
        raise Reject("unknown_shape", f"a record is {json_kind(record)}, expected an object or a list of messages")
    for key, reason in _MEDIA.items():
        if record.get(key):
            raise Reject(reason, f"the record has {key}")
    return FORMATS[recognise(record) if data_format == "auto" else data_format](record)


def recognise(record: dict[str, Any]) -> str:
    """The name of the record's format, from its keys and what they hold."""
    if any(key in record for key in _IDS):
        return "ids"
    if "generated_text" in record:
        return "raw"
    if isinstance(record.get("request"), dict) and "response" in record:
        return "api"
    if "instruction" in record:
        return "alpaca"
    if any(key in record for key in _LISTS):
        return "messages"
    if any(key in record for key in _PROMPTS):
        return "qa"
    if any(isinstance(value, dict) and _list_key(value) for value in record.values()):
        return "nested"
    if any(key in record for key in _LENGTHS):
        raise Reject("lengths_only", f"the record has lengths but no {_IDS[0]}; give it to `extractor plan` instead")
    raise Reject("unknown_shape", f"no known shape has the keys {', '.join(map(str, record)) or '(none)'}")


def _messages(record: dict[str, Any]) -> list[Record]:
    key = _list_key(record) or next((key for key in _LISTS if key in record), None)
    if key is None:
        raise Reject("no_messages", f"none of {', '.join(_LISTS)} is among the record's keys")
    return [_conversation(record[key], record)]


def _list_key(record: dict[str, Any]) -> str | None:
    """The first key that holds messages, or texts that take turns."""

    def fits(value: Any) -> bool:
        return isinstance(value, list) and bool(value) and (is_message(value[0]) or isinstance(value[0], str))

    return next((key for key in _LISTS if fits(record.get(key))), None)


def _conversation(values: Any, record: dict[str, Any]) -> Conversation:
    if not isinstance(values, list) or not values:
        raise Reject("no_messages", f"the list of messages is {'empty' if values == [] else json_kind(values)}")
    repairs: list[str] = []
    if all(isinstance(value, str) for value in values):
        values = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(values)]
    messages = [parse_message(value, repairs) for value in values]
    system = record.get("system") or record.get("system_prompt")
    if isinstance(system, str) and messages[0].role != "system":
        messages.insert(0, Message("system", system))
    link_results(messages, repairs)
    return Conversation(messages, parse_tools(record.get("tools", record.get("functions"))), repairs)


def _alpaca(record: dict[str, Any]) -> list[Record]:
    """Instruction and input become one user turn with a blank line between; `instances` hold several inputs."""
    if record.get("instances") is not None:
        return [_alpaca_one({**record, **instance}) for instance in _objects(record["instances"])]
    return [_alpaca_one(record)]


def _alpaca_one(record: dict[str, Any]) -> Record:
    given = _field(record, ("input",)) if record.get("input") else ""
    user = "\n\n".join(text for text in (_field(record, ("instruction",)), given) if text)
    answer = _field(record, ("output", "response", *_ANSWERS))
    turns: list[Any] = []
    history = record.get("history")
    for pair in history if isinstance(history, list) else []:
        if not isinstance(pair, list) or len(pair) != 2:
            raise Reject("not_text", "history must hold pairs of question and answer")
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    turns += [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
    return _conversation(turns, record)


def _objects(values: Any) -> list[dict[str, Any]]:
    if not isinstance(values, list) or not values or not all(isinstance(value, dict) for value in values):
        raise Reject("no_answer", "instances must be a list of objects, not empty")
    return values


def _qa(record: dict[str, Any]) -> list[Record]:
    if not any(key in record for key in _ANSWERS):
        raise Reject("no_answer", f"none of {', '.join(_ANSWERS)} is among the record's keys")
    prompt = next((record[key] for key in _PROMPTS if key in record), None)
    turns = list(prompt) if isinstance(prompt, list) else [{"role": "user", "content": _field(record, _PROMPTS)}]
    return [_conversation([*turns, {"role": "assistant", "content": _field(record, _ANSWERS)}], record)]


def _api(record: dict[str, Any]) -> list[Record]:
    """A logged call of a chat completions server: the request's messages and the first choice."""
    request, response = record["request"], record["response"]
    choices = response.get("choices") if isinstance(response, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict) or not is_message(first.get("message")):
        raise Reject("no_answer", "the response holds no message")
    messages = request.get("messages")
    return [_conversation([*(messages if isinstance(messages, list) else []), first["message"]], request)]


def _nested(record: dict[str, Any]) -> list[Record]:
    return _messages(next(value for value in record.values() if isinstance(value, dict) and _list_key(value)))


def _raw(record: dict[str, Any]) -> list[Record]:
    """`generated_text` is what the server wrote; the prompt is `prompt_text`, already rendered, or messages."""
    generated = _field(record, ("generated_text",))
    key = _list_key(record)
    prompt = _conversation(record[key], record) if key else _field(record, ("prompt_text", "prompt"))
    return [RawText(prompt, generated, record.get("finish_reason", "stop") != "length")]


def _ids(record: dict[str, Any]) -> list[Record]:
    ids = next(record[key] for key in _IDS if key in record)
    token_ids = _integers(ids, "bad_ids", np.int32)
    mask = record.get("loss_mask")
    if mask is None and record.get("labels") is not None:
        mask = _integers(record["labels"], "bad_mask", np.int64) != -100
    loss_mask = None if mask is None else _integers(mask, "bad_mask", np.uint8)
    return [TokenRecord(token_ids, loss_mask, _segments(record.get("segments")))]


def _segments(given: Any) -> list[tuple[str, int, int]] | None:
    """Parts in the form of a samples file."""
    if given is None:
        return None
    try:
        return [(str(segment["kind"]), int(segment["start"]), int(segment["end"])) for segment in given]
    except (TypeError, KeyError, ValueError):
        raise Reject("bad_segments", "expected a list of objects with kind, start and end") from None


def _field(record: dict[str, Any], keys: tuple[str, ...]) -> str:
    key = next((key for key in keys if record.get(key) is not None), None)
    if key is None:
        raise Reject("not_text", f"{' / '.join(keys)} is missing or null")
    if not isinstance(record[key], str):
        raise Reject("not_text", f"{key} is {json_kind(record[key])}, expected text")
    return str(record[key])


def _integers(values: Any, reason: str, dtype: type[np.generic]) -> np.ndarray:
    """`values` as a flat array of `dtype`; nothing is rounded, wrapped or cut."""
    try:
        wide = np.asarray(values)
        exact = (
            wide.ndim == 1 and wide.size > 0 and (wide.dtype.kind in "iub") and bool(np.all(wide.astype(dtype) == wide))
        )
    except (ValueError, TypeError, OverflowError):
        exact = False
    if not exact:
        raise Reject(reason, f"expected a flat list of integers, not empty, that fit {np.dtype(dtype)}")
    return wide.astype(dtype)


FORMATS: dict[str, Callable[[dict[str, Any]], list[Record]]] = {
    "messages": _messages,
    "sharegpt": _messages,
    "alpaca": _alpaca,
    "qa": _qa,
    "api": _api,
    "nested": _nested,
    "raw": _raw,
    "ids": _ids,
}
