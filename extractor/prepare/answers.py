"""The answer at the end of a rendered conversation: the prompt it was generated from, its text, and its parts.

The prompt is what the template gives for the messages before with a generation prompt: that is what the server reads.
The answer is what the template gives for the message itself. Joined, they are what the server had in memory when it
finished, even where the template, asked for the whole conversation, would show history or thinking otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from extractor.prepare.abilities import Abilities, text_to_end_token
from extractor.prepare.conversation import Message
from extractor.prepare.marks import Spans, Wrap, find_fields
from extractor.prepare.reject import Reject


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an answer; it begins where the part before it ends. `end` counts characters of the answer."""

    kind: str
    end: int


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` was generated from `prompt`, end token included; `tail` is what the template writes after it."""

    prompt: str
    text: str
    tail: str
    parts: tuple[Part, ...]

    @property
    def whole(self) -> str:
        return self.prompt + self.text + self.tail


def find_answer(
    full: str, prompt: str, message: Message, abilities: Abilities, render_marked: Callable[[Wrap], str]
) -> Answer:
    """The answer `message` at the end of `full`, the rendered conversation up to and with it; `prompt` is the rendering
    of what stands before, with a generation prompt. Raises Reject when the template hid or changed the answer."""
    plain = not message.thinking and not message.tool_calls and full.startswith(prompt)
    if plain and full.endswith(abilities.close):
        return _plain_answer(full, prompt, message, abilities)
    fields = (("thinking", message.thinking), ("response", message.content))
    wanted = {name for name, text in fields if text.strip()}
    spans = find_fields(full, wanted, render_marked) if wanted else {}
    first = min((start for start, _ in spans.values()), default=len(full))
    prompt_shown, start = _answer_start(full, prompt, first, abilities)
    end = _answer_end(full, max([start, *(end for _, end in spans.values())]), abilities)
    parts = tuple(_parts(full, spans, start, end, message, abilities))
    answer = Answer(prompt_shown, full[start:end], full[end:], parts)
    return answer if "thinking" not in wanted - spans.keys() else _restore_thought(answer, prompt, message, abilities)


def _plain_answer(full: str, prompt: str, message: Message, abilities: Abilities) -> Answer:
    """Without thinking and calls, all of the answer is response, but for an empty thought that the template adds."""
    start, end = len(prompt), len(full) - len(abilities.close) + len(abilities.end_token)
    at = full.find(message.content.strip(), start, end)
    if at < 0:
        raise Reject("text_lost", "the chat template does not render the answer as it is")
    parts = (*_leading_thought(full, start, at, abilities), Part("response", end - start))
    return Answer(prompt, full[start:end], full[end:], parts)


def _answer_start(full: str, prompt: str, first: int, abilities: Abilities) -> tuple[str, int]:
    """(prompt, start of the answer in `full`). Where the template shows history otherwise once the answer is there, the
    start is found by the last header before the answer's fields."""
    if full.startswith(prompt):
        return prompt, len(prompt)
    opening = abilities.think_open if abilities.header.endswith(abilities.think_open) else ""
    base = abilities.header.removesuffix(opening)
    at = full.rfind(base, 0, first) if base.strip() and prompt.endswith(abilities.header) else -1
    if at < 0:
        start = min(_common(full, prompt), first)
        return full[:start], start
    if full.startswith(opening, at + len(base)):
        return prompt, at + len(base) + len(opening)
    return prompt.removesuffix(opening), at + len(base)


def _answer_end(full: str, last: int, abilities: Abilities) -> int:
    if full.endswith(abilities.close) and len(full) - len(abilities.close) >= last:
        return len(full) - len(abilities.close) + len(abilities.end_token)
    return last + len(text_to_end_token(full[last:], abilities.turn_tokens))


def _parts(full: str, spans: Spans, start: int, end: int, message: Message, abilities: Abilities) -> Iterator[Part]:
    """Closing tags belong to thinking, what opens a call belongs to the call, the end token to the last part."""
    found: list[tuple[str, int]] = [(name, spans[name][1]) for name in ("thinking", "response") if name in spans]
    if message.tool_calls:
        found.append(("tool", end))
    if "thinking" not in spans:
        yield from _leading_thought(full, start, spans.get("response", (end, end))[0], abilities)
    for name, to in found[:-1]:
        yield Part(name, (_after_close(full, to, message, abilities) if name == "thinking" else to) - start)
    yield Part(found[-1][0] if found else "response", end - start)


def _leading_thought(full: str, start: int, to: int, abilities: Abilities) -> Iterator[Part]:
    """An empty thought that the template writes before an answer without one."""
    close = abilities.think_close.strip()
    at = full.rfind(close, start, to) if close else -1
    if at >= 0:
        yield Part("thinking", at + len(close) - start)


def _after_close(full: str, at: int, message: Message, abilities: Abilities) -> int:
    close = (abilities.think_close if abilities.thinking_key else message.think_tags[1]).strip()
    blank = len(full[at:]) - len(full[at:].lstrip())
    return at + blank + len(close) if close and full.startswith(close, at + blank) else at


def _restore_thought(answer: Answer, prompt: str, message: Message, abilities: Abilities) -> Answer:
    """Put thinking where the template, which drops it even from the last answer, would have left it: into the empty
    thought it writes instead, or after the opening tag with which the generation prompt ends."""
    opening, close = abilities.think_open, abilities.think_close
    if close and answer.text.startswith(opening + close):
        return _with_thought(answer, opening + message.thinking, len(opening), close)
    if close and answer.prompt.endswith(opening) and answer.text.startswith(close):
        return _with_thought(answer, message.thinking, 0, close)
    if "<think>" in prompt.removeprefix(answer.prompt) and prompt.startswith(answer.prompt):
        close = message.think_tags[1]
        opened = replace(answer, prompt=prompt, text=close + answer.text, parts=_shifted(answer.parts, len(close)))
        return _with_thought(opened, message.thinking, 0, close)
    raise Reject("text_lost", "the chat template drops thinking and leaves no place for it")


def _with_thought(answer: Answer, opened: str, skip: int, close: str) -> Answer:
    """`opened` takes the place of the first `skip` characters; the closing tag follows already."""
    text = opened + answer.text[skip:]
    parts = [part for part in _shifted(answer.parts, len(opened) - skip) if part.kind != "thinking"]
    return replace(answer, text=text, parts=(Part("thinking", len(opened) + len(close.rstrip())), *parts))


def _shifted(parts: tuple[Part, ...], by: int) -> tuple[Part, ...]:
    return tuple(Part(part.kind, part.end + by) for part in parts)


def _common(first: str, second: str) -> int:
    """The length of the longest common beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    return low
