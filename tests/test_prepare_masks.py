"""The mask and the parts of whole conversations, with every id written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prepare_cases import parts, prepare_records

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
CONVERSATION = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": "", "reasoning_content": "Ask the tool.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "-3"},
        {"role": "assistant", "content": "Cold: -3."},
    ]
}


def mask_by_part(row: dict[str, Any]) -> list[tuple[str, set[int]]]:
    return [(s["kind"], set(row["loss_mask"][s["start"] : s["end"]])) for s in row["segments"]]


# SmolLM2: 1 <|im_start|>, 2 <|im_end|>, 198 line break. Its template has no place for thinking and calls.
# fmt: off
SMOLLM2_PARTS = [
    ("prompt", [1, 9690, 198, 6077, 5453, 30, 2, 198,          # system \n Be brief .
                1, 4093, 198, 39939, 281, 41730, 47, 2, 198,   # user \n Weather in Oslo ?
                1, 520, 9531, 198]),                           # ass istant \n
    ("thinking", [44, 17400, 46, 198, 18986, 260, 1763, 30, 198, 9617, 17400, 46]),  # < think > \n ... </ think >
    ("tool", [198, 198, 44, 19324, 79, 4350, 46, 198,          # < tool _ call >
              39428, 1245, 1799, 476, 29624, 1002,             # {" name ":  " weather ",
              476, 24370, 1799, 9583, 20721, 1799,             # " arguments ":  {" city ":
              476, 11062, 5365, 18, 17859,                     #  " Os lo " }}
              198, 9617, 19324, 79, 4350, 46, 2]),             # \n </ tool _ call > <|im_end|>
    ("prompt", [198, 1, 19324, 198, 29, 35, 2, 198, 1, 520, 9531, 198]),  # \n ... tool \n - 3 ... ass istant \n
    ("response", [35730, 42, 731, 35, 30, 2]),                 # Cold :  - 3 . <|im_end|>
    ("prompt", [198]),
]
# fmt: on


def test_smollm2_thinking_and_tools(tmp_path: Path, smollm2_tokenizer_dir: Path) -> None:
    [row] = prepare_records(tmp_path, smollm2_tokenizer_dir, [CONVERSATION])
    assert parts(row) == SMOLLM2_PARTS
    assert mask_by_part(row) == [(kind, {int(kind != "prompt")}) for kind, _ in SMOLLM2_PARTS]
    assert row["sample_id"] == "data-0"
    assert row["origin"] == {"file": "data.jsonl", "record": 0}
    assert row["num_tokens"] == len(row["input_ids"]) == sum(len(ids) for _, ids in SMOLLM2_PARTS)


def plain(text: str) -> list[int]:
    """Ids of the stand-in for text without words that have an id: its bytes."""
    return list(text.encode())


# 163594 <|im_system|>, 163587 <|im_user|>, 163588 <|im_assistant|>, 163601 <|im_middle|>, 163586 <|im_end|>,
# 163606 <think>, 163607 </think>, 163595 .. 163599 tool calls; 69702 assistant, 2482 user, 14062 system, 300 tool.
KIMI_HEAD = [
    163594,
    14062,
    163601,
    *plain("Be brief."),
    163586,
    163587,
    2482,
    163601,
    *plain("Weather in Oslo?"),
    163586,
]
KIMI_PARTS = [
    ("prompt", [*KIMI_HEAD, 163588, 69702, 163601, 163606]),
    ("thinking", [302, *plain(" the "), 300, 46, 163607]),
    (
        "tool",
        [163595, 163597, *plain("functions.weather:0"), 163598, *plain('{"city": "Oslo"}'), 163599, 163596, 163586],
    ),
    (
        "prompt",
        [163594, 300, 163601, *plain("## Return of functions.weather:0\n-3"), 163586, 163588, 69702, 163601, 163606],
    ),
    ("thinking", [163607]),
    ("response", [301, *plain(": -3."), 163586]),
]


def test_kimi_thinking_and_tools(tmp_path: Path, kimi_tokenizer_dir: Path) -> None:
    """The template empties the first thought once the conversation is finished; the sample keeps it, because the
    server's prompt for the second turn had it."""
    [row] = prepare_records(tmp_path, kimi_tokenizer_dir, [CONVERSATION], trust_remote_code=True)
    assert parts(row) == KIMI_PARTS
    assert mask_by_part(row) == [(kind, {int(kind != "prompt")}) for kind, _ in KIMI_PARTS]


def test_kimi_thinking_of_every_turn_is_trained_once(tmp_path: Path, kimi_tokenizer_dir: Path) -> None:
    turns = [("u0", "t0", "a0"), ("u1", "t1", "a1")]
    messages = [
        message
        for user, thought, answer in turns
        for message in (
            {"role": "user", "content": user},
            {"role": "assistant", "content": answer, "reasoning_content": thought},
        )
    ]
    first, second = prepare_records(tmp_path, kimi_tokenizer_dir, [{"messages": messages}], trust_remote_code=True)
    opened = [163587, 2482, 163601, *plain("u0"), 163586, 163588, 69702, 163601, 163606]
    assert first["input_ids"] == [*opened, *plain("t0"), 163607, *plain("a0"), 163586]
    history = [*opened, 163607, *plain("a0"), 163586]  # the thought of a turn in history is emptied
    asked = [*history, 163587, 2482, 163601, *plain("u1"), 163586, 163588, 69702, 163601, 163606]
    assert second["input_ids"] == [*asked, *plain("t1"), 163607, *plain("a1"), 163586]
    assert first["loss_mask"] == [0] * len(opened) + [1] * 6
    assert second["loss_mask"] == [0] * len(asked) + [1] * 6
    assert [first["sample_id"], second["sample_id"]] == ["data-0.0", "data-0.1"]


@pytest.mark.parametrize("train_on", [("response",), ("thinking",), ("tool",), ("thinking", "tool")])
def test_train_on_chooses_parts(tmp_path: Path, smollm2_tokenizer_dir: Path, train_on: tuple[str, ...]) -> None:
    [row] = prepare_records(tmp_path, smollm2_tokenizer_dir, [CONVERSATION], train_on=train_on)
    assert mask_by_part(row) == [(kind, {int(kind in train_on)}) for kind, _ in SMOLLM2_PARTS]


def test_last_turn_only(tmp_path: Path, smollm2_tokenizer_dir: Path) -> None:
    [row] = prepare_records(tmp_path, smollm2_tokenizer_dir, [CONVERSATION], turns="last")
    whole = [token for _, ids in SMOLLM2_PARTS for token in ids]
    assert parts(row) == [("prompt", whole[:-7]), ("response", whole[-7:-1]), ("prompt", whole[-1:])]


def test_generation_begins_at_a_token_boundary(tmp_path: Path, smollm2_tokenizer_dir: Path) -> None:
    """The server's prompt ends in a line break; a tokenizer fed the whole text would merge it with the answer's blanks
    into one token, which the model never saw nor wrote."""
    messages = [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": "    return x"}]
    [row] = prepare_records(tmp_path, smollm2_tokenizer_dir, [{"messages": messages}])
    assert parts(row)[0][1][-4:] == [1, 520, 9531, 198]
    assert parts(row)[1] == ("response", [333, 1003, 1792, 2])  # three blanks,  return,  x, <|im_end|>


def test_weight_zero_is_not_trained(tmp_path: Path, smollm2_tokenizer_dir: Path) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "skip", "weight": 0},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "keep", "weight": 1},
    ]
    [row] = prepare_records(tmp_path, smollm2_tokenizer_dir, [{"messages": messages}])
    assert [ids for kind, ids in parts(row) if kind == "response"] == [[13799, 2]]
