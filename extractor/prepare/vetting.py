"""Checks and stated repairs of a conversation that need to know the chat template."""

from __future__ import annotations

from collections.abc import Iterator

from extractor.prepare.abilities import Abilities
from extractor.prepare.conversation import Conversation, Message, ToolCall
from extractor.prepare.reject import Reject, a_turn


def vet(conversation: Conversation, abilities: Abilities) -> None:
    """Cut what follows the last answer, take end tokens off answers, note what the template can't show.
    Raises Reject when there is no answer, or a turn token stands inside a text."""
    messages = conversation.messages
    answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
    if not answers:
        raise Reject("no_assistant_turn", f"the {len(messages)} messages hold no assistant turn")
    if answers[-1] + 1 < len(messages):
        conversation.repairs.append("trailing_turns_cut")
        del messages[answers[-1] + 1 :]
    for message in messages:
        _strip_end_token(message, abilities, conversation.repairs)
    vet_texts(conversation, abilities)
    if not abilities.names_calls:
        _name_calls(conversation)
    _note_inlined(conversation, abilities)


def vet_texts(conversation: Conversation, abilities: Abilities) -> None:
    """Raises Reject for a turn token inside a text: it would be read as a turn that is not there."""
    _refuse_turn_tokens(repr(conversation.tools), "the tool declarations", abilities)
    for message in conversation.messages:
        for text in _texts(message):
            _refuse_turn_tokens(text, f"the text of {a_turn(message.role)}", abilities)


def _refuse_turn_tokens(text: str, where: str, abilities: Abilities) -> None:
    token = next((token for token in abilities.turn_tokens if token in text), None)
    if token is not None:
        raise Reject("turn_token_in_text", f"{token} stands in {where}")


def _strip_end_token(message: Message, abilities: Abilities, repairs: list[str]) -> None:
    """Answers logged with their end token get it from the template again."""
    end = abilities.end_token.strip()
    if message.role == "assistant" and end and message.content.rstrip().endswith(end):
        message.content = message.content.rstrip().removesuffix(end)
        repairs.append("end_token_stripped")


def _texts(message: Message) -> Iterator[str]:
    yield message.content
    yield message.thinking
    for call in message.tool_calls:
        yield call.name
        yield _argument_text(call)


def _argument_text(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else repr(call.arguments)


def _name_calls(conversation: Conversation) -> None:
    """Where the template shows the id of a call and not its function, the id must name the function."""
    renamed: dict[str | None, str] = {}
    calls = [call for message in conversation.messages for call in message.tool_calls]
    for number, call in enumerate(calls):
        if call.name not in (call.call_id or ""):
            old, call.call_id = call.call_id, f"functions.{call.name}:{number}"
            renamed[old] = call.call_id
    for message in conversation.messages:
        message.tool_call_id = renamed.get(message.tool_call_id, message.tool_call_id)
    if renamed:
        conversation.repairs.append("call_id_renamed")


def _note_inlined(conversation: Conversation, abilities: Abilities) -> None:
    messages, repairs = conversation.messages, conversation.repairs
    if not abilities.thinking_key and any(message.thinking for message in messages):
        repairs.append("thinking_inlined")
    if not abilities.argument_forms and any(message.tool_calls for message in messages):
        repairs.append("tool_calls_inlined")
    if not abilities.tool_role and any(message.role == "tool" for message in messages):
        repairs.append("tool_results_inlined")
    if conversation.tools and not abilities.declares_tools:
        repairs.append("tool_declarations_not_rendered")
