"""What a chat template can express, found by rendering small conversations.

Nothing is known here about particular models: whether a template has a place for thinking and tool calls, how it closes
a turn, and which tokens it builds turns from is read off its output.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from extractor.prepare.reject import Reject

Messages = list[dict[str, Any]]
_THINKING_KEYS = ("reasoning_content", "reasoning", "thinking")
_QUESTION, _ANSWER, _THOUGHT, _NAME = "qQq", "aAa", "tTt", "nAmE"
_ARGUMENTS: tuple[str | dict[str, str], ...] = (
    '{"k":  "v"}',
    {"k": "v"},
)  # two blanks show whether text stays as it is
_SPEC = {"type": "function", "function": {"name": _NAME, "description": "", "parameters": {"type": "object"}}}
_ASK = {"role": "user", "content": _QUESTION}


class Render(Protocol):
    """Renders messages; raises Reject when the template refuses them."""

    def __call__(self, messages: Messages, tools: list[dict[str, Any]], prompt: bool = False) -> str: ...


@dataclass(frozen=True, slots=True)
class Abilities:
    """Empty strings and tuples: the template has nothing of the kind.

    `header` opens an answer. `close` is the text from the end of an answer to the end of its turn, `end_token` its part
    up to the last special token, `closes_questions` whether that token ends questions too. `argument_forms` are the
    types in which tool arguments come out right; `names_calls` is False where only a call's id tells its function.
    `think_open` and `think_close` are all text around thinking, `tool_open` is the first token of tool calls.
    `turn_tokens` are the special tokens that the template itself writes."""

    header: str = ""
    close: str = ""
    end_token: str = ""
    thinking_key: str | None = None
    think_open: str = ""
    think_close: str = ""
    argument_forms: tuple[type, ...] = ()
    names_calls: bool = True
    tool_open: str = ""
    tool_role: bool = False
    declares_tools: bool = False
    closes_questions: bool = False
    turn_tokens: tuple[str, ...] = ()


def probe(render: Render, added: Collection[str], special: Collection[str]) -> Abilities:
    """The abilities of the template behind `render`; `added` and `special` are the tokenizer's tokens of those sorts.
    A template that refuses even a question with an answer gets none, and later refuses the records themselves."""
    bare, plain = _try(render, [_ASK]), _try(render, [_ASK, _answer()])
    if bare is None or plain is None or _ANSWER not in plain:
        return Abilities()
    prompt = _try(render, [_ASK], prompt=True) or bare
    close = plain[plain.rindex(_ANSWER) + len(_ANSWER) :]
    forms, called = _argument_forms(render)
    key, thought = _thinking(render, forms)
    declared = _try(render, [_ASK], tools=[_SPEC]) or ""
    everything = "".join((plain, prompt, thought, called, declared))
    end_token = text_to_end_token(close, special)
    return Abilities(
        header=prompt.removeprefix(bare) if prompt.startswith(bare) else "",
        close=close,
        end_token=end_token,
        thinking_key=key,
        think_open=_think_open(thought, bare, added),
        think_close=thought.rpartition(_THOUGHT)[2].partition(_ANSWER)[0],
        argument_forms=forms,
        names_calls=not forms or _NAME in (_try(render, [_ASK, _answer(tool_calls=[_probe_call(forms, "0")])]) or ""),
        tool_open=_first_token(called.rpartition(_ANSWER)[2].partition(_NAME)[0], added),
        tool_role=_renders_results(render, forms),
        declares_tools=_NAME in declared,
        closes_questions=bool(end_token) and end_token in bare.rpartition(_QUESTION)[2],
        turn_tokens=tuple(token for token in special if token in everything),
    )


def _try(
    render: Render, messages: Messages, tools: list[dict[str, Any]] | None = None, prompt: bool = False
) -> str | None:
    try:
        return render(messages, tools or [], prompt)
    except Reject:
        return None


def _answer(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": _ANSWER, **fields}


def _call(arguments: Any, call_id: str = f"functions.{_NAME}:0") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": _NAME, "arguments": arguments}}


def _probe_call(forms: tuple[type, ...], *call_id: str) -> dict[str, Any]:
    return _call(next(arguments for arguments in _ARGUMENTS if type(arguments) in forms), *call_id)


def _thinking(render: Render, forms: tuple[type, ...]) -> tuple[str | None, str]:
    """The first message key whose thinking the template renders, and that rendering. Some templates keep thinking in
    answers with tool calls only, and leave a finished answer an empty thought."""
    calls = {"tool_calls": [_probe_call(forms)]} if forms else {}
    for key in _THINKING_KEYS:
        for extra in ({}, calls):
            text = _try(render, [_ASK, _answer(**{key: _THOUGHT}, **extra)]) or ""
            if -1 < text.find(_THOUGHT) < text.find(_ANSWER):
                return key, text
    return None, ""


def _think_open(thought: str, bare: str, added: Collection[str]) -> str:
    """The opening tag, from its token to the thought. Without such a token nothing can be said."""
    before = thought.partition(_THOUGHT)[0].removeprefix(bare)
    token = _last_token(before, added)
    return before[before.rfind(token) :] if token else ""


def _argument_forms(render: Render) -> tuple[tuple[type, ...], str]:
    """The types of tool arguments that come out unescaped, and one such rendering."""
    forms: list[type] = []
    shown = ""
    for arguments in _ARGUMENTS:
        text = _try(render, [_ASK, _answer(tool_calls=[_call(arguments)])]) or ""
        wanted = (arguments,) if isinstance(arguments, str) else ('"k": "v"', '"k":"v"')
        if _NAME in text and any(form in text for form in wanted):
            forms.append(type(arguments))
            shown = text
    return tuple(forms), shown


def _renders_results(render: Render, forms: tuple[type, ...]) -> bool:
    answer = _answer(tool_calls=[_probe_call(forms)]) if forms else _answer()
    result = {"role": "tool", "content": _THOUGHT, "tool_call_id": f"functions.{_NAME}:0", "name": _NAME}
    return _THOUGHT in (_try(render, [_ASK, answer, result]) or "")


def text_to_end_token(text: str, special: Collection[str]) -> str:
    """`text` up to the end of its last special token; without one, up to its last character that is not blank."""
    ends = [text.rfind(token) + len(token) for token in special if token in text]
    return text[: max(ends)] if ends else text.rstrip()


def _first_token(text: str, added: Collection[str]) -> str:
    return min((token for token in added if token in text), key=text.find, default="")


def _last_token(text: str, added: Collection[str]) -> str:
    return max((token for token in added if token in text), key=text.rfind, default="")
