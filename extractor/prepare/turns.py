"""A conversation -> rendered samples, cut into runs of text where the model began and stopped to generate.

A turn is trained on in a sample only where it stands exactly as it was generated: its text in the sample must equal the
text the template gives when that turn is the last one. Templates that drop thinking from history therefore yield
several samples, in which each turn is trained on once; others yield one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from extractor.prepare.answers import Answer, Part, find_answer
from extractor.prepare.conversation import Conversation, RawText
from extractor.prepare.reject import Reject
from extractor.prepare.template import Template
from extractor.prepare.vetting import vet, vet_texts


@dataclass(frozen=True, slots=True)
class Run:
    """Text that is tokenized apart: where generation begins, the server's ids have a boundary that a tokenizer fed the
    whole text may merge away. `parts` (ends count from the run's start) make it generated text, no parts make it
    prompt. With `by_ids` it is generated text whose parts are read off its ids."""

    text: str
    parts: tuple[Part, ...] = ()
    by_ids: bool = False


@dataclass(frozen=True, slots=True)
class Rendered:
    """One sample: its runs, joined, are the template's text. `turn` is the number of the message it ends with."""

    runs: tuple[Run, ...]
    turn: int

    @property
    def text(self) -> str:
        return "".join(run.text for run in self.runs)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The answer that is message `index`, as the last of its conversation."""

    index: int
    answer: Answer

    @property
    def to_end(self) -> str:
        return self.answer.prompt + self.answer.text


def render_conversation(conversation: Conversation, template: Template, turns: str = "all") -> list[Rendered]:
    """The fewest samples in which every trainable answer (or only the last, `turns` "last") stands as generated; none
    if there is nothing to train on. Raises Reject."""
    vet(conversation, template.abilities)
    indices = list(_trainable(conversation))
    if turns == "last":
        indices = indices[-1:]
    return _group([_render_turn(conversation, index, template) for index in indices])


def render_raw(raw: RawText, template: Template) -> list[Rendered]:
    """The server's own text. An end token is added where generation ended by itself and the text lacks it."""
    if not raw.generated:
        raise Reject("no_assistant_turn", "generated_text is empty")
    abilities = template.abilities
    prompt = raw.prompt if isinstance(raw.prompt, str) else _prompt(raw.prompt, template)
    opening = abilities.think_open
    if opening and raw.generated.startswith(opening) and prompt.endswith(opening):
        prompt = prompt.removesuffix(opening)  # the log repeats the tag with which the prompt opened the thinking
    generated = raw.generated
    if raw.finished and not generated.endswith(abilities.end_token):
        generated += abilities.end_token
        raw.repairs.append("end_token_added")
    return [Rendered((Run(prompt), Run(generated, by_ids=True)), 0)]


def _prompt(conversation: Conversation, template: Template) -> str:
    """What the server read; an answer at the end of the messages is the one that the raw text replaces."""
    vet_texts(conversation, template.abilities)
    messages = conversation.messages
    while messages and messages[-1].role == "assistant":
        messages = messages[:-1]
    return template.render([template.message(message) for message in messages], conversation.tools, prompt=True)


def _trainable(conversation: Conversation) -> Iterator[int]:
    """Answers that are not empty, follow a question, and are not excluded by the record."""
    asked = False
    for index, message in enumerate(conversation.messages):
        asked = asked or message.role in ("user", "tool")
        if message.role != "assistant" or not message.trained or message.is_empty:
            continue
        if asked:
            yield index
        else:
            conversation.repairs.append("greeting_untrained")


def _render_turn(conversation: Conversation, index: int, template: Template) -> _Turn:
    message, tools = conversation.messages[index], conversation.tools
    before = [template.message(earlier) for earlier in conversation.messages[:index]]
    text = template.render([*before, template.message(message)], tools)
    prompt = template.render(before, tools, prompt=True)
    answer = find_answer(
        text,
        prompt,
        message,
        template.abilities,
        lambda wrap: template.render([*before, template.message(message, wrap)], tools),
    )
    return _Turn(index, answer)


def _group(turns: list[_Turn]) -> list[Rendered]:
    """Samples from the last turn backwards, each taking along the earlier turns whose text it holds unchanged."""
    samples = []
    left = turns
    while left:
        last = left[-1]
        whole = last.answer.whole
        held = [turn for turn in left if whole.startswith(turn.to_end)]
        left = [turn for turn in left if turn not in held]
        samples.append(Rendered(tuple(_runs(whole, [turn.answer for turn in held])), last.index))
    return samples[::-1]


def _runs(whole: str, answers: list[Answer]) -> Iterator[Run]:
    at = 0
    for answer in answers:
        start = len(answer.prompt)
        yield Run(whole[at:start])
        yield Run(answer.text, answer.parts)
        at = start + len(answer.text)
    if at < len(whole):
        yield Run(whole[at:])
