"""A small conversation corpus of our own: plain turns, thinking, tools, code, several languages, one long text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

_PAIRS = [
    (
        "What is a residual stream?",
        "It is the vector that every decoder layer reads and adds to. Attention and the "
        "feed-forward block each write an update into it, so that after k layers it holds the sum of the embedding and "
        "2k updates.",
    ),
    (
        "Why does a draft model want hidden states of the target?",
        "They already contain most of what the target "
        "knows about the next tokens. A small head that reads them guesses several tokens ahead, and the target then "
        "checks the guess in one pass.",
    ),
    (
        "Explain what a checksum is to a child.",
        "Imagine you count all the beads in a box before you send it to a "
        "friend, and write the number on the lid. If your friend counts another number, some beads got lost on the "
        "way. A checksum is such a number for computer files.",
    ),
    (
        "Write a haiku about a slow disk.",
        "Bytes wait in a queue,\nthe platter turns once, twice, thrice -\nmodels dream meanwhile.",
    ),
    ("Wie heißt die Hauptstadt von Australien?", "Die Hauptstadt von Australien ist Canberra, nicht Sydney."),
    (
        "Quelle est la différence entre un verrou et un sémaphore ?",
        "Un verrou n'admet qu'un seul détenteur à la fois ; un sémaphore en admet jusqu'à un nombre fixé à l'avance.",
    ),
    ("日本で一番高い山は何ですか。", "日本で一番高い山は富士山で、標高は三千七百七十六メートルです。"),
    (
        "Count from one to twenty in words.",
        "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, "
        "thirteen, fourteen, fifteen, sixteen, seventeen, eighteen, nineteen, twenty",
    ),
    (
        "Give me a regular expression for a date like 2024-05-31.",
        "`^\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])$` "
        "checks the shape and the ranges of month and day, but it lets the 31st of February pass.",
    ),
    ("Is 91 a prime number?", "No. 91 = 7 * 13."),
]

_CODE = '''def merge_sorted(left, right):
    """Merge two sorted lists into one."""
    merged, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:]
'''

_PARAGRAPHS = [
    "The extractor writes one sample to one shard. A sample is cut into tiles of consecutive rows, each tile is one "
    "value of the database, and a small record called the seal is written last. Without its seal a sample does not "
    "exist, however many of its tiles have reached the disk.",
    "When the disk is slower than the model, the ring between them fills. The model then waits for a free slot, and "
    "the time it waited is added up and shown. Nothing is dropped and nothing grows, so a run that was planned for "
    "eight hours of memory pressure behaves in its last minute as in its first.",
    "A layer id names a place between two layers. Zero is the embedding, the number of layers is the output of the "
    "last one before the final norm. Projects that count outputs instead of inputs are off by one against this, which "
    "is why the convention is written into every manifest.",
    "Half precision ends at 65,504. Some models carry a handful of activations far beyond that on their first token. "
    "Such a value is stored as the largest representable number and counted, and the count is kept with the sample, "
    "so that a trainer can decide whether it minds.",
]


def conversations() -> list[dict[str, Any]]:
    """All conversations as OpenAI-style records, in a fixed order."""
    records = [_chat(question, answer) for question, answer in _PAIRS]
    records += [_several_turns(), _code(), _thinking(), _tool_use(), *_long_texts()]
    return [{"id": f"demo-{number}", **record} for number, record in enumerate(records)]


def write_corpus(path: Path) -> None:
    """Write the corpus as JSONL."""
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in conversations()), "utf-8")


def _chat(*turns: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]}


def _several_turns() -> dict[str, Any]:
    turns = [text for pair in _PAIRS[:4] for text in pair]
    return _chat(*turns, "Thank you!", "You are welcome.")


def _code() -> dict[str, Any]:
    return _chat("Write a function that merges two sorted lists.", f"```python\n{_CODE}```\nIt takes O(n + m) steps.")


def _thinking() -> dict[str, Any]:
    record = _chat(
        "A train leaves at 14:35 and arrives at 17:10. How long is the ride?", "The ride takes 2 hours and 35 minutes."
    )
    record["messages"][1]["reasoning_content"] = (
        "From 14:35 to 16:35 are two hours. From 16:35 to 17:10 are 35 minutes. Together that is 2 h 35 min."
    )
    return record


def _tool_use() -> dict[str, Any]:
    call = {"id": "call_0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    return {
        "tools": [_WEATHER],
        "messages": [
            {"role": "user", "content": "Do I need an umbrella in Oslo?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_0", "content": '{"temperature_c": 7, "rain_mm": 4.2}'},
            {"role": "assistant", "content": "Yes: it is raining in Oslo, 4.2 mm so far, at 7 degrees."},
        ],
    }


def _long_texts() -> list[dict[str, Any]]:
    story = "\n\n".join(_PARAGRAPHS)
    return [
        _chat("Explain how the extractor keeps data safe.", story),
        _chat(
            f"Summarise this in one sentence:\n\n{story}",
            "Samples appear whole or not at all, memory stays bounded, and every conversion is counted.",
        ),
        _chat(
            f"Repeat this text backwards by paragraph:\n\n{story}\n\n{story}", "\n\n".join(reversed(_PARAGRAPHS * 2))
        ),
    ]
