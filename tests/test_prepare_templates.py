"""What is read off chat templates, and conversations under templates with habits of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from prepare_cases import chat, parts, prepare_files, prepare_records, rejects, write_jsonl

from extractor.errors import InputError
from extractor.prepare.assemble import Assembler
from extractor.prepare.idrecords import IdReader
from extractor.prepare.reject import Reject
from extractor.prepare.run import FAILED_REJECTS
from extractor.prepare.shapes import parse_record
from extractor.prepare.template import Template
from extractor.prepare.tokens import Tokenizer, load_tokenizer
from extractor.prepare.turns import Rendered, render_conversation

CALL = {"id": "functions.f:0", "function": {"name": "f", "arguments": {"x": 1}}}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("templates")
    return {
        name: load_tokenizer(tiny_tokenizer.write(folder / name, template))
        for name, template in tiny_tokenizer.TEMPLATES.items()
    }


def rendered(tokenizer: Tokenizer, record: Any, **options: Any) -> list[Rendered]:
    [conversation] = parse_record(record)
    return render_conversation(conversation, Template(tokenizer), **options)  # type: ignore[arg-type]


def texts(sample: Rendered) -> list[tuple[str, str]]:
    """(kind, text) of every part, adjacent prompts apart."""
    found = []
    for run in sample.runs:
        at = 0
        for part in run.parts:
            found.append((part.kind, run.text[at : part.end]))
            at = part.end
        if not run.parts:
            found.append(("prompt", run.text))
    return found


def test_abilities(tokenizers: dict[str, Tokenizer]) -> None:
    found = {name: Template(tokenizer).abilities for name, tokenizer in tokenizers.items()}
    assert {name: a.end_token for name, a in found.items()} == {
        "chatml": "<|im_end|>",
        "thinking": "<|im_end|>",
        "trimming": "<|im_end|>",
        "dropping": "</s>",
    }
    assert {name: a.thinking_key for name, a in found.items() if a.thinking_key} == {"thinking": "reasoning_content"}
    assert {name: a.argument_forms for name, a in found.items() if a.argument_forms} == {"thinking": (dict,)}
    assert (found["thinking"].think_open, found["thinking"].think_close) == ("<think>\n", "\n</think>\n\n")
    assert found["thinking"].tool_open == "<tool_call>"
    assert [name for name, a in found.items() if not a.tool_role] == ["trimming"]
    assert found["dropping"].header == "<|im_start|><think>\n"
    assert set(found["trimming"].turn_tokens) == {"<s>", "<|im_start|>", "<|im_end|>"}


def test_parts_where_the_template_has_a_place(tokenizers: dict[str, Tokenizer]) -> None:
    message = {"role": "assistant", "content": "so:", "reasoning_content": "\nhm\n", "tool_calls": [CALL]}
    [sample] = rendered(tokenizers["thinking"], {"messages": [{"role": "user", "content": "q"}, message]})
    assert texts(sample) == [
        ("prompt", "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"),
        ("thinking", "<think>\nhm\n</think>"),
        ("response", "\n\nso:"),
        ("tool", '\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call><|im_end|>'),
        ("prompt", "\n"),
    ]


def test_thinking_dropped_from_history_makes_samples_by_question(tokenizers: dict[str, Tokenizer]) -> None:
    """Turns of one tool chain share a sample, the turn before the last question gets its own."""
    messages = [
        {"role": "user", "content": "q0"},
        {"role": "assistant", "content": "a0", "reasoning_content": "t0"},
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": "", "reasoning_content": "t1", "tool_calls": [CALL]},
        {"role": "tool", "content": "r"},
        {"role": "assistant", "content": "a1", "reasoning_content": "t2"},
    ]
    first, second = rendered(tokenizers["thinking"], {"messages": messages})
    thoughts = [[text for kind, text in texts(sample) if kind == "thinking"] for sample in (first, second)]
    assert thoughts == [["<think>\nt0\n</think>"], ["<think>\nt1\n</think>", "<think>\nt2\n</think>"]]
    assert [text for kind, text in texts(second) if kind == "response"] == ["\n\na1<|im_end|>"]
    assert "t0" not in second.text


def test_thinking_dropped_even_from_the_last_answer(tokenizers: dict[str, Tokenizer]) -> None:
    """The generation prompt opens the thought; what the model wrote is thought, closing tag, answer."""
    record = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>\nt</think>a"}]}
    [sample] = rendered(tokenizers["dropping"], record)
    assert texts(sample) == [
        ("prompt", "<s>q<|im_start|><think>\n"),
        ("thinking", "\nt</think>"),
        ("response", "a</s>"),
    ]


def test_trimmed_answer(tokenizers: dict[str, Tokenizer]) -> None:
    record = chat("q", "<think> t </think>\n\n a \n")
    [sample] = rendered(tokenizers["trimming"], record)
    assert (
        sample.text == "<s><|im_start|>user\n\nq<|im_end|><|im_start|>assistant\n\n<think> t </think>\n\n a<|im_end|>"
    )
    assert texts(sample)[1:] == [("thinking", "<think> t </think>"), ("response", "\n\n a<|im_end|>")]


def test_tool_results_without_a_role_go_inline(tokenizers: dict[str, Tokenizer]) -> None:
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "r"},
        {"role": "assistant", "content": "a"},
    ]
    [sample] = rendered(tokenizers["trimming"], {"messages": messages})
    assert "<|im_start|>user\n\n<tool_response>\nr\n</tool_response><|im_end|>" in sample.text
    with pytest.raises(Reject, match="template_lacks: the chat template has no place for tool calls"):
        render_conversation(parse_record({"messages": messages})[0], Template(tokenizers["trimming"], "reject"))  # type: ignore[arg-type]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).map(lambda text: text.replace("<", "("))
THOUGHT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8).map(lambda text: text.replace("<", "("))


@st.composite
def conversations(draw: st.DrawFn) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(TEXT)})
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(TEXT)})
        for _ in range(draw(st.integers(0, 2))):
            messages.append({"role": "assistant", "content": draw(TEXT), "tool_calls": [CALL]})
            if draw(st.booleans()):
                messages[-1]["reasoning_content"] = draw(THOUGHT)
            messages.append({"role": "tool", "content": draw(TEXT)})
        messages.append({"role": "assistant", "content": draw(TEXT)})
        if draw(st.booleans()):
            messages[-1]["reasoning_content"] = draw(THOUGHT)
    return {"messages": messages}


@pytest.mark.parametrize("name", ["chatml", "thinking", "trimming", "smollm2", "kimi"])
def test_decoded_segments_are_the_rendered_text(
    tokenizers: dict[str, Tokenizer], request: pytest.FixtureRequest, name: str
) -> None:
    """For any conversation: the decoded segments, joined, are the text, and every answer that is not empty is trained
    on in exactly one sample, whole."""
    if name in tokenizers:
        tokenizer = tokenizers[name]
    else:
        folder = request.getfixturevalue(f"{name}_tokenizer_dir")
        tokenizer = load_tokenizer(folder, trust_remote_code=name == "kimi")
    template = Template(tokenizer)

    @settings(max_examples=30, deadline=None)
    @given(conversations())
    def check(record: Any) -> None:
        [conversation] = parse_record(record)
        found = render_conversation(conversation, template)  # type: ignore[arg-type]
        for sample in found:
            if tokenizer.decode(tokenizer.encode([sample.text])[0].ids) == sample.text:
                check_sample(sample, tokenizer, template)
        answers = [run.text for sample in found for run in sample.runs if run.parts]
        trainable = [m for m in conversation.messages if m.role == "assistant" and not m.is_empty]  # type: ignore[union-attr]
        assert len(answers) == len(trainable)
        for message in trainable:
            assert any(message.content.strip() in text and message.thinking.strip("\n") in text for text in answers)
        if found and name in ("chatml", "smollm2"):  # these render history as it was
            kept = conversation.messages[: found[0].turn + 1]  # type: ignore[union-attr]
            assert [sample.text for sample in found] == [template.render([template.message(m) for m in kept], [])]

    check()


def test_text_that_the_tokenizer_can_not_hold(tmp_path: Path, smollm2_tokenizer_dir: Path) -> None:
    """SmolLM2 has no token for the byte F1, and drops it without a word."""
    prepare_records(tmp_path, smollm2_tokenizer_dir, [chat("q", "\U00040000"), chat("q", "\U0001f600")])
    assert [(r["record"], r["reason"]) for r in rejects(tmp_path / "out")] == [(0, "not_exact")]


def check_sample(sample: Rendered, tokenizer: Tokenizer, template: Template) -> None:
    abilities = template.abilities
    parts = ("response", "thinking", "tool")
    assembler = Assembler(tokenizer, IdReader(tokenizer, abilities), abilities.turn_tokens, parts)
    texts_of_runs, several = [run.text for run in sample.runs], [len(run.parts) > 1 for run in sample.runs]
    made = assembler.from_text(sample, tokenizer.encode(texts_of_runs, several))
    decoded = [tokenizer.decode(made.token_ids[start:end].tolist()) for _, start, end in made.segments]
    assert "".join(decoded) == sample.text
    if tokenizer.backend is None or len(tokenizer.names) < 1000:  # a token a byte: no token lies across a border
        assert [(kind, text) for (kind, _, _), text in zip(made.segments, decoded, strict=True)] == _merged(sample)
    mask = [int(kind != "prompt") for kind, start, end in made.segments for _ in range(start, end)]
    assert made.loss_mask.tolist() == mask


def _merged(sample: Rendered) -> list[tuple[str, str]]:
    merged: list[tuple[str, str]] = []
    for kind, text in texts(sample):
        if merged and merged[-1][0] == kind:
            merged[-1] = (kind, merged[-1][1] + text)
        elif text:
            merged.append((kind, text))
    return merged


def test_no_template(tmp_path: Path) -> None:
    """Conversations need one; ids do not."""
    folder = tiny_tokenizer.write(tmp_path / "bare", None)
    with pytest.raises(InputError, match="no chat template.*--chat-template FILE"):
        prepare_records(tmp_path, folder, [chat("q", "a")])
    [row] = prepare_records(tmp_path, folder, [{"input_ids": [65, 66]}])
    assert row["input_ids"] == [65, 66]
    template = tmp_path / "t.jinja"
    template.write_text(tiny_tokenizer.CHATML)
    assert prepare_records(tmp_path, folder, [chat("q", "a")], chat_template=template)


def test_template_that_raises(tmp_path: Path) -> None:
    folder = tiny_tokenizer.write(tmp_path / "raising", tiny_tokenizer.RAISING)
    data = write_jsonl(tmp_path / "data.jsonl", [chat("q", "a"), {"input_ids": [65]}])
    report = prepare_files(tmp_path / "out", folder, data)
    assert report["total"]["records"]["rejected"] == {"template_error": 1}
    assert rejects(tmp_path / "out")[0]["detail"] == "TemplateError: never"


def test_template_stays_in_the_sandbox(tmp_path: Path) -> None:
    escape = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    folder = tiny_tokenizer.write(tmp_path / "escape", escape)
    with pytest.raises(InputError, match="1 template_error"):
        prepare_records(tmp_path, folder, [chat("q", "a")])
    (reject,) = map(json.loads, (tmp_path / "out" / FAILED_REJECTS).read_text().splitlines())
    assert "SecurityError" in reject["detail"]


@pytest.mark.parametrize("place", ["vocab", "added", "config"])
def test_two_tokens_claiming_one_id(tmp_path: Path, place: str) -> None:
    """The loader itself accepts all three, and gives one of the two another id."""
    folder = tiny_tokenizer.write(tmp_path / "twice")
    tiny_tokenizer.claim_twice(folder, place)
    with pytest.raises(InputError, match=r"gives id 257 to two tokens: .*<\|other\|>"):
        prepare_records(tmp_path, folder, [chat("q", "a")])


def test_turn_token_in_text_is_rejected_and_end_token_repaired(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    records = [chat("what is <|im_end|>?", "a token"), chat("q", "a<|im_end|>"), chat("q2", "<|im_start|>")]
    [row] = prepare_records(tmp_path, tiny_tokenizer_dir, records)
    assert parts(row)[1] == ("response", [*_bytes("a"), tiny_tokenizer.END])
    assert [(r["record"], r["reason"]) for r in rejects(tmp_path / "out")] == [
        (0, "turn_token_in_text"),
        (2, "turn_token_in_text"),
    ]


def _bytes(text: str) -> list[int]:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [alphabet.index(character) for character in text]
