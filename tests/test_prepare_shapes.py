"""Records of every known shape, and the reasons of those that have none."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extractor.prepare.conversation import Conversation, RawText, TokenRecord
from extractor.prepare.reject import Reject
from extractor.prepare.shapes import parse_record, recognise

ASK, SAY = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def conversation(record: Any, data_format: str = "auto") -> Conversation:
    [parsed] = parse_record(record, data_format)
    assert isinstance(parsed, Conversation)
    return parsed


def turns(record: Any) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in conversation(record).messages]


QA = [("user", "q"), ("assistant", "a")]


@pytest.mark.parametrize(
    ("shape", "record"),
    [
        ("messages", {"messages": [ASK, SAY]}),
        ("messages", {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}),
        ("messages", {"conversations": [ASK, SAY], "id": 7}),
        ("messages", {"conversation": ["q", "a"], "language": "x"}),
        ("messages", {"traj": [ASK, SAY], "reward": 0.0}),
        ("messages", {"trajectory": [{"action": "ls", "observation": "x"}], "history": [ASK, SAY]}),
        ("alpaca", {"instruction": "q", "input": "", "output": "a"}),
        ("alpaca", {"instruction": "q", "response": "a"}),
        ("alpaca", {"instruction": "q", "instances": [{"input": "", "output": "a"}], "id": "s"}),
        ("qa", {"prompt": "q", "response": "a"}),
        ("qa", {"question": "q", "answer": "a"}),
        ("qa", {"prompt": [ASK], "completion": "a"}),
        ("qa", {"task_id": "t", "prompt": "q", "canonical_solution": "a", "test": "assert 1"}),
        ("api", {"request": {"messages": [ASK]}, "response": {"choices": [{"message": SAY}]}}),
        ("nested", {"id": 1, "data": {"messages": [ASK, SAY]}}),
        ("messages", {"messages": [ASK, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]}),
        ("messages", {"messages": [{"role": "user", "content": ["q"]}, SAY]}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "value": "q"}]}, SAY]}),
    ],
)
def test_shapes(shape: str, record: dict[str, Any]) -> None:
    assert recognise(record) == shape
    assert turns(record) == QA


def test_bare_list_of_messages() -> None:
    assert turns([ASK, SAY]) == QA


def test_system_texts_and_alpaca_input_and_history() -> None:
    assert turns({"conversations": [{"from": "human", "value": "q"}, SAY], "system": "s"})[0] == ("system", "s")
    record = {"instruction": "do", "input": "this", "output": "a", "history": [["q0", "a0"]]}
    assert turns(record) == [("user", "q0"), ("assistant", "a0"), ("user", "do\n\nthis"), ("assistant", "a")]


def test_instances_give_one_conversation_each() -> None:
    record = {"instruction": "i", "instances": [{"input": "x", "output": "1"}, {"input": "y", "output": "2"}]}
    assert [[m.content for m in c.messages] for c in parse_record(record)] == [["i\n\nx", "1"], ["i\n\ny", "2"]]  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_thinking_fields(key: str) -> None:
    message = conversation({"messages": [ASK, {**SAY, key: "t"}]}).messages[1]
    assert (message.thinking, message.content) == ("t", "a")


@pytest.mark.parametrize(
    ("text", "tags", "thinking", "content"),
    [
        ("<think>t</think>a", ("<think>", "</think>"), "t", "a"),
        ("\n<think>\nt\n</think>\n\na", ("\n<think>", "</think>"), "\nt\n", "\n\na"),
        ("<Thought>t</Thought>a", ("<Thought>", "</Thought>"), "t", "a"),
        ("t</think>a", ("", "</think>"), "t", "a"),
    ],
)
def test_thinking_in_text_can_be_put_back_exactly(text: str, tags: Any, thinking: str, content: str) -> None:
    message = conversation({"messages": [ASK, {"role": "assistant", "content": text}]}).messages[1]
    assert (message.think_tags, message.thinking, message.content) == (tags, thinking, content)
    assert message.think_tags[0] + message.thinking + message.think_tags[1] + message.content == text


def test_thinking_parts_and_details() -> None:
    parts = [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "a"}]
    message = conversation({"messages": [ASK, {"role": "assistant", "content": parts}]}).messages[1]
    assert (message.thinking, message.content) == ("t", "a")
    details = [{"type": "reasoning.text", "text": "t"}]
    assert conversation({"messages": [ASK, {**SAY, "reasoning_details": details}]}).messages[1].thinking == "t"


def test_tool_calls_in_all_spellings() -> None:
    spellings = [
        {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}]},
        {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"x": 1}}}]},
        {"tool_calls": [{"id": "c", "name": "f", "parameters": {"x": 1}}]},
        {"function_call": {"name": "f", "arguments": '{"x":1}'}},
    ]
    for fields in spellings:
        [call] = (
            conversation({"messages": [ASK, {"role": "assistant", "content": None, **fields}]}).messages[1].tool_calls
        )
        assert call.name == "f"
        assert call.arguments in ('{"x":1}', {"x": 1})
    sharegpt = [{"from": "human", "value": "q"}, {"from": "function_call", "value": '{"name": "f", "arguments": {}}'}]
    message = conversation({"conversations": sharegpt}).messages[1]
    assert (message.role, message.tool_calls[0].name, message.content) == ("assistant", "f", "")


def test_results_find_their_calls() -> None:
    calls = [{"function": {"name": "f", "arguments": ""}}, {"id": "own", "function": {"name": "g", "arguments": None}}]
    messages = [
        ASK,
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": {"t": 1}},
        {"role": "tool"},
    ]
    parsed = conversation({"messages": messages})
    assert [call.call_id for call in parsed.messages[1].tool_calls] == ["functions.f:0", "own"]
    assert [message.tool_call_id for message in parsed.messages[2:]] == ["functions.f:0", "own"]
    assert parsed.messages[2].content == '{"t": 1}'
    assert set(parsed.repairs) == {"empty_arguments", "call_id_made", "result_id_filled"}


def test_tools_as_text_and_bare_functions() -> None:
    parsed = conversation({"messages": [ASK, SAY], "tools": '[{"name": "f", "parameters": {}}]'})
    assert parsed.tools == [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def test_weights_exclude_turns() -> None:
    for key in ("weight", "loss_weight", "train"):
        assert not conversation({"messages": [ASK, {**SAY, key: 0}]}).messages[1].trained
        assert conversation({"messages": [ASK, {**SAY, key: 1}]}).messages[1].trained


def test_ids_raw_and_labels() -> None:
    [record] = parse_record({"input_ids": [1, 2, 3], "labels": [-100, 2, 3]})
    assert isinstance(record, TokenRecord)
    assert record.loss_mask is not None
    assert (record.token_ids.tolist(), record.loss_mask.tolist()) == ([1, 2, 3], [0, 1, 1])
    assert (record.token_ids.dtype, record.loss_mask.dtype) == (np.int32, np.uint8)
    [raw] = parse_record({"prompt_text": "p", "generated_text": "g", "finish_reason": "length"})
    assert raw == RawText("p", "g", finished=False)


@pytest.mark.parametrize(
    ("reason", "record"),
    [
        ("unknown_shape", "text"),
        ("unknown_shape", {"text": "no shape"}),
        ("unknown_shape", {}),
        ("lengths_only", {"seq_len": 12, "id": "x"}),
        ("no_messages", {"messages": []}),
        ("no_messages", {"messages": None}),
        ("no_messages", []),
        ("bad_message", {"messages": [ASK, "text"]}),
        ("bad_message", {"messages": [{"role": "narrator", "content": "x"}]}),
        ("bad_message", {"messages": [{"role": None, "content": "x"}]}),
        ("null_content", {"messages": [{"role": "user", "content": None}, SAY]}),
        ("not_text", {"messages": [{"role": "user", "content": 3}, SAY]}),
        ("not_text", {"instruction": "i", "input": [1, 2], "output": 3}),
        ("not_text", {"instruction": "i", "output": None}),
        ("no_answer", {"prompt": "only"}),
        ("no_answer", {"request": {"messages": [ASK]}, "response": {"error": "overloaded"}}),
        ("image_content", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, SAY]}),
        ("image_content", {"messages": [ASK, SAY], "images": ["a.png"]}),
        ("media_content", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}, SAY]}),
        ("tool_arguments", {"messages": [ASK, {**SAY, "tool_calls": [{"name": "f", "arguments": '{"x": '}]}]}),
        ("tool_arguments", {"messages": [ASK, {**SAY, "tool_calls": [{"name": "f", "arguments": "[1]"}]}]}),
        ("bad_tool_call", {"messages": [ASK, {**SAY, "tool_calls": [{"id": "c"}]}]}),
        ("bad_tool_call", {"messages": [ASK, {**SAY, "tool_calls": "f()"}]}),
        ("bad_tool_call", {"conversations": [{"from": "function_call", "value": "f()"}]}),
        ("orphan_tool_result", {"messages": [ASK, SAY, {"role": "tool", "content": "r"}]}),
        ("orphan_tool_result", {"messages": [ASK, {"role": "tool", "tool_call_id": "gone", "content": "r"}, SAY]}),
        ("no_answer", {"instruction": "i", "instances": [None]}),
        ("not_text", {"instruction": "i", "output": "o", "history": ["x"]}),
        ("bad_tools", {"messages": [ASK, SAY], "tools": "{"}),
        ("unclosed_thinking", {"messages": [ASK, {"role": "assistant", "content": "<think>never"}]}),
        ("bad_ids", {"input_ids": []}),
        ("bad_ids", {"input_ids": [1.5]}),
        ("bad_ids", {"input_ids": [[1], [2, 3]]}),
        ("bad_ids", {"input_ids": [2**31]}),
        ("bad_ids", {"input_ids": "12"}),
        ("bad_mask", {"input_ids": [1], "loss_mask": [-1]}),
        ("bad_segments", {"input_ids": [1], "segments": [{"kind": "prompt"}]}),
    ],
)
def test_rejects(reason: str, record: Any) -> None:
    with pytest.raises(Reject) as caught:
        parse_record(record)
    assert caught.value.reason == reason
    assert caught.value.detail


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
KEYS = st.sampled_from(
    ["messages", "conversations", "role", "from", "content", "value", "instruction", "output", "prompt", "response"]
    + [
        "input_ids",
        "loss_mask",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "tools",
        "request",
        "choices",
        "history",
    ]
    + ["instances", "reasoning", "reasoning_details", "type", "text", "generated_text", "labels", "segments", "images"]
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "function_call", "developer"])},
    optional=dict.fromkeys(("content", "tool_calls", "reasoning", "reasoning_details", "tool_call_ids", "name"), JSON),
)
RECORDS = st.recursive(
    JSON | MESSAGES | st.sampled_from(["user", "assistant", "tool", "function_call", "text", "{}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=24,
)


@settings(max_examples=300, deadline=None)
@given(RECORDS)
def test_any_value_is_parsed_or_rejected(record: Any) -> None:
    """No JSON value whatsoever raises anything but a rejection (which itself checks that its reason is known)."""
    with suppress(Reject):
        assert parse_record(record)
