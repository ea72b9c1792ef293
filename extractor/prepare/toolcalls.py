"""Tool calls, their results, and the declarations of tools, in the spellings that data sets use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from extractor.prepare.conversation import Message, ToolCall
from extractor.prepare.reject import Reject, json_kind


def parse_calls(message: dict[str, Any], repairs: list[str]) -> list[ToolCall]:
    """The calls of an assistant message: `tool_calls`, or the older single `function_call`."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise Reject("bad_tool_call", f"tool_calls is {json_kind(calls)}, expected a list")
    legacy = message.get("function_call")
    return [_parse_call(call, repairs) for call in (calls or ([legacy] if legacy else []))]


def parse_call_text(text: str, repairs: list[str]) -> list[ToolCall]:
    """The calls of a ShareGPT `function_call` turn: a JSON object, or a list of them."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Reject("bad_tool_call", f"a function_call turn is not JSON ({error})") from None
    return [_parse_call(call, repairs) for call in (value if isinstance(value, list) else [value])]


def _parse_call(call: Any, repairs: list[str]) -> ToolCall:
    if not isinstance(call, dict):
        raise Reject("bad_tool_call", f"a call is {json_kind(call)}, expected an object")
    inner = call.get("function")
    function: dict[str, Any] = inner if isinstance(inner, dict) else call
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise Reject("bad_tool_call", f"a call has no name; its keys are {', '.join(map(str, function)) or 'none'}")
    given = next((function[key] for key in ("arguments", "parameters", "args") if key in function), None)
    call_id = call.get("id")
    return ToolCall(name, _arguments(given, name, repairs), call_id if isinstance(call_id, str) and call_id else None)


def _arguments(given: Any, name: str, repairs: list[str]) -> str | dict[str, Any]:
    """JSON text and objects stay as they are. Nothing at all means a call without arguments."""
    if given is None or (isinstance(given, str) and given.strip() in ("", "null")):
        repairs.append("empty_arguments")
        return {}
    if isinstance(given, dict):
        return given
    try:
        value = json.loads(given) if isinstance(given, str) else given
    except ValueError as error:
        raise Reject("tool_arguments", f"arguments of {name} are not JSON ({error})") from None
    if not isinstance(value, dict):
        raise Reject("tool_arguments", f"arguments of {name} are {json_kind(value)}, expected an object")
    return str(given)


def link_results(messages: list[Message], repairs: list[str]) -> None:
    """Give each call an id and each result the id of the call it answers, in order where ids are missing.
    Raises Reject for a result that answers no call."""
    known: set[str] = set()
    waiting: list[str] = []
    number = 0
    for message in messages:
        for call in message.tool_calls:
            if call.call_id is None:
                call.call_id = f"functions.{call.name}:{number}"
                repairs.append("call_id_made")
            number += 1
            known.add(call.call_id)
            waiting.append(call.call_id)
        if message.role == "tool":
            _link(message, known, waiting, repairs)


def _link(result: Message, known: set[str], waiting: list[str], repairs: list[str]) -> None:
    if result.tool_call_id is None:
        if not waiting:
            raise Reject("orphan_tool_result", "a tool result follows no unanswered call")
        result.tool_call_id = waiting[0]
        repairs.append("result_id_filled")
    elif result.tool_call_id not in known:
        raise Reject("orphan_tool_result", f"tool_call_id {result.tool_call_id!r} belongs to no call before it")
    if result.tool_call_id in waiting:
        waiting.remove(result.tool_call_id)


def parse_tools(value: Any) -> list[dict[str, Any]]:
    """Tool declarations as a list of OpenAI tool objects; text holding JSON and bare functions are accepted."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise Reject("bad_tools", f"the declarations are not JSON ({error})") from None
    if value is None:
        return []
    return list(_declared(value if isinstance(value, list) else [value]))


def _declared(tools: list[Any]) -> Iterator[dict[str, Any]]:
    for tool in tools:
        if not isinstance(tool, dict):
            raise Reject("bad_tools", f"a declaration is {json_kind(tool)}, expected an object")
        yield tool if "function" in tool or "type" in tool else {"type": "function", "function": tool}
