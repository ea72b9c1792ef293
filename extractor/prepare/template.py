"""Renders conversations with the tokenizer's chat template; writes inline what the template has no place for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from jinja2.exceptions import TemplateError

from extractor.errors import InputError
from extractor.prepare.abilities import Abilities, Messages, probe
from extractor.prepare.conversation import Message, ToolCall
from extractor.prepare.reject import Reject
from extractor.prepare.tokens import Tokenizer

Wrap = Callable[[str, str], str]  # (part, text) -> the text with marks around it

# Template code fails like any code: a missing key, None + str, an index. All of it means: not with this record.
_REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Template:
    """`abilities` says what the template can express. Rendering happens in the sandbox of transformers."""

    def __init__(self, tokenizer: Tokenizer, lacking: str = "inline") -> None:
        self._tokenizer = tokenizer
        self._lacking = lacking
        self._exists = bool(tokenizer.hf.chat_template) or tokenizer.renders_itself
        self.abilities = probe(self.render, tokenizer.added, tokenizer.special) if self._exists else Abilities()

    def render(self, messages: Messages, tools: list[dict[str, Any]], prompt: bool = False) -> str:
        """The template's text; `prompt` adds what opens the next answer. Raises Reject when the template refuses,
        InputError when there is none."""
        if not self._exists:
            raise InputError(
                f"the tokenizer in {self._tokenizer.path} has no chat template, and the data holds conversations; "
                "pass --chat-template FILE with a Jinja template, or data with input_ids"
            )
        try:
            text = self._tokenizer.hf.apply_chat_template(
                messages, tools=tools or None, tokenize=False, add_generation_prompt=prompt
            )
        except _REFUSALS as error:
            raise Reject("template_error", f"{type(error).__name__}: {error}") from None
        return str(text)

    def message(self, message: Message, wrap: Wrap | None = None) -> dict[str, Any]:
        """The message as templates read it; `wrap` puts marks around thinking and content."""
        marked = wrap or _unmarked
        if message.role == "tool":
            return self._tool_result(message)
        rendered: dict[str, Any] = {"role": message.role, "content": marked("response", message.content)}
        if message.name:
            rendered["name"] = message.name
        if message.thinking:
            self._put_thinking(rendered, message, marked("thinking", message.thinking))
        if message.tool_calls:
            self._put_calls(rendered, message.tool_calls)
        return rendered

    def _put_thinking(self, rendered: dict[str, Any], message: Message, thinking: str) -> None:
        if self.abilities.thinking_key:
            rendered[self.abilities.thinking_key] = thinking
            return
        self._allow_inline("thinking")
        rendered["content"] = message.think_tags[0] + thinking + message.think_tags[1] + rendered["content"]

    def _put_calls(self, rendered: dict[str, Any], calls: list[ToolCall]) -> None:
        if self.abilities.argument_forms:
            rendered["tool_calls"] = [self._call(call) for call in calls]
            return
        self._allow_inline("tool calls")
        before = str(rendered["content"])
        rendered["content"] = before + "\n" * (before[-1:] not in ("", "\n")) + "\n".join(map(_inline_call, calls))

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments: Any = call.arguments
        if type(arguments) not in self.abilities.argument_forms:
            arguments = _as_text(call) if isinstance(arguments, dict) else json.loads(arguments)
        return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}

    def _tool_result(self, message: Message) -> dict[str, Any]:
        if not self.abilities.tool_role:
            self._allow_inline("tool results")
            return {"role": "user", "content": f"<tool_response>\n{message.content}\n</tool_response>"}
        rendered = {"role": "tool", "content": message.content, "tool_call_id": message.tool_call_id}
        return {**rendered, "name": message.name} if message.name else rendered

    def _allow_inline(self, what: str) -> None:
        if self._lacking == "reject":
            raise Reject("template_lacks", f"the chat template has no place for {what}")


def _unmarked(_part: str, text: str) -> str:
    return text


def _inline_call(call: ToolCall) -> str:
    return f'<tool_call>\n{{"name": {_dump(call.name)}, "arguments": {_as_text(call)}}}\n</tool_call>'


def _as_text(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else _dump(call.arguments)


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise Reject("tool_arguments", f"arguments can't be written as JSON ({error})") from None
