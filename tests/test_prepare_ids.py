"""Records that carry ids, and the server's own text that must become them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kimi_standin as kimi
import pyarrow.parquet as pq
import pytest
from prepare_cases import parts, prepare_files, prepare_records, rejects, samples, write_jsonl

from extractor.prepare.assemble import Assembler
from extractor.prepare.idrecords import IdReader
from extractor.prepare.reject import Reject
from extractor.prepare.template import Template
from extractor.prepare.tokens import Encoded, Tokenizer, load_tokenizer
from extractor.prepare.turns import Rendered, Run


def plain(text: str) -> list[int]:
    return list(text.encode())


QUESTION = [163587, 2482, 163601, *plain("hi"), 163586]
OPEN = [163588, 69702, 163601]
ANSWER = [163606, *plain("hm"), 163607, *plain("ok"), 163595, 163597, *plain("functions.f:0"), 163598, *plain("{}")]
CALL_END = [163599, 163596, 163586]
IDS = [*QUESTION, *OPEN, *ANSWER, *CALL_END]


@pytest.fixture(scope="module")
def tokenizer(kimi_tokenizer_dir: Path) -> Tokenizer:
    return load_tokenizer(kimi_tokenizer_dir, trust_remote_code=True)


def prepared(folder: Path, tokenizer: Path, *records: Any, **options: Any) -> list[dict[str, Any]]:
    return prepare_records(folder, tokenizer, records, trust_remote_code=True, **options)


def test_the_table_of_special_tokens(tokenizer: Tokenizer) -> None:
    """The stand-in has the real ids, and none of the parts of a special token's name is one."""
    assert {name: tokenizer.added[name] for name in kimi.NAMED.values()} == {v: k for k, v in kimi.NAMED.items()}
    assert tokenizer.encode(["<|im_end|>"])[0].ids == [163586]
    assert "<|tool_calls_section_begin|>" not in tokenizer.special
    assert Template(tokenizer).abilities.tool_open == "<|tool_calls_section_begin|>"


def test_parts_are_read_off_the_ids(tmp_path: Path, kimi_tokenizer_dir: Path) -> None:
    [row] = prepared(tmp_path, kimi_tokenizer_dir, {"input_ids": IDS})
    assert row["input_ids"] == IDS
    assert parts(row) == [
        ("prompt", [*QUESTION, *OPEN]),
        ("thinking", [163606, *plain("hm"), 163607]),
        ("response", plain("ok")),
        ("tool", [*ANSWER[6:], *CALL_END]),
    ]
    assert row["loss_mask"] == [0] * 9 + [1] * (len(IDS) - 9)


def test_given_mask_is_the_truth(tmp_path: Path, kimi_tokenizer_dir: Path) -> None:
    mask = [0] * (len(IDS) - 3) + [1, 1, 0]
    [row] = prepared(tmp_path, kimi_tokenizer_dir, {"input_ids": IDS, "loss_mask": mask})
    assert row["loss_mask"] == mask


def test_an_answer_cut_off_is_still_trained_on(tmp_path: Path, kimi_tokenizer_dir: Path) -> None:
    [row] = prepared(tmp_path, kimi_tokenizer_dir, {"input_ids": [*QUESTION, *OPEN, 163606, *plain("hm")]})
    assert parts(row)[1:] == [("thinking", [163606, *plain("hm")])]


@pytest.mark.parametrize(
    ("reason", "record"),
    [
        ("turns_not_closed", {"input_ids": [163533 if token == 163586 else token for token in IDS]}),
        ("bad_ids", {"input_ids": [*IDS, 163840]}),
        ("bad_ids", {"input_ids": [*IDS, 1000]}),
        ("bad_ids", {"input_ids": [-1]}),
        ("bad_mask", {"input_ids": IDS, "loss_mask": [1]}),
        ("bad_mask", {"input_ids": IDS, "loss_mask": [2] * len(IDS)}),
        ("bad_segments", {"input_ids": IDS, "segments": [{"kind": "prompt", "start": 0, "end": 3}]}),
        ("lengths_only", {"seq_len": 3}),
    ],
)
def test_ids_that_can_not_be(tmp_path: Path, kimi_tokenizer_dir: Path, reason: str, record: Any) -> None:
    """Among them: ids made with another table of special tokens, in which 163533 closes turns; the stand-in knows that
    id as no token at all, so it is given a name here."""
    folder = kimi.write(tmp_path / "tokenizer", {163533: "w"} if reason == "turns_not_closed" else {})
    prepared(tmp_path, folder, record, {"input_ids": IDS})
    assert [reject["reason"] for reject in rejects(tmp_path / "out")] == [reason]


GENERATED = "hm</think>ok<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
GENERATED_END = "<|tool_call_end|><|tool_calls_section_end|>"


def test_raw_text_becomes_the_ids_of_the_server(tmp_path: Path, kimi_tokenizer_dir: Path) -> None:
    record = {"messages": [{"role": "user", "content": "hi"}], "generated_text": GENERATED + GENERATED_END}
    [row] = prepared(tmp_path, kimi_tokenizer_dir, record)
    assert row["input_ids"] == IDS
    assert [(kind, len(ids)) for kind, ids in parts(row)] == [
        ("prompt", 10),
        ("thinking", 3),
        ("response", 2),
        ("tool", 21),
    ]
    rendered = "<|im_user|>user<|im_middle|>hi<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    [same] = prepared(
        tmp_path, kimi_tokenizer_dir, {"prompt_text": rendered, "generated_text": GENERATED + GENERATED_END}
    )
    assert same["input_ids"] == IDS


def test_raw_text_stopped_by_its_length_gets_no_end_token(tmp_path: Path, kimi_tokenizer_dir: Path) -> None:
    record = {"messages": [{"role": "user", "content": "hi"}], "generated_text": "hm", "finish_reason": "length"}
    [row] = prepared(tmp_path, kimi_tokenizer_dir, record)
    assert row["input_ids"] == [*QUESTION, *OPEN, 163606, *plain("hm")]


def test_ids_that_are_not_the_text_are_rejected(tokenizer: Tokenizer) -> None:
    """Negative control: other ids for the same text, and the end token spelled out in ordinary tokens."""
    template = Template(tokenizer)
    reader = IdReader(tokenizer, template.abilities)
    assembler = Assembler(tokenizer, reader, template.abilities.turn_tokens, ("response",))
    rendered = Rendered((Run("hi<|im_end|>", by_ids=True),), 0)
    assert assembler.from_text(rendered, [Encoded([104, 105, 163586])]).loss_mask.tolist() == [1, 1, 1]
    with pytest.raises(Reject, match="not_exact: ids decode to 'o<"):
        assembler.from_text(rendered, [Encoded([104, 111, 163586])])
    with pytest.raises(Reject, match=r"not_exact: the text holds <\|im_end\|> 1 times, the ids 0 times"):
        assembler.from_text(rendered, [Encoded(plain("hi<|im_end|>"))])


def test_slow_boundary_is_the_token_that_covers_the_cut(tokenizer: Tokenizer) -> None:
    text = "Ask the tool"  # ids: Ask 302, blank, t, h, e, blank, tool 300
    ids = tokenizer.encode([text])[0]
    assert [tokenizer.boundary(ids, text, at) for at in (0, 1, 3, 4, 8, 9, 12)] == [0, 1, 1, 2, 6, 7, 7]


def test_fast_and_slow_boundaries_agree(smollm2_tokenizer_dir: Path) -> None:
    fast = load_tokenizer(smollm2_tokenizer_dir)
    text = "A caf\u00e9 \U0001f600\U0001f468 return  x</think>\n\nyes"
    [tracked] = fast.encode([text], [True])
    [untracked] = fast.encode([text])
    assert tracked.ids == untracked.ids
    for at in range(len(text) + 1):
        assert fast.boundary(tracked, text, at) == fast.boundary(untracked, text, at), at


def test_samples_can_be_prepared_again(tmp_path: Path, kimi_tokenizer_dir: Path) -> None:
    """A samples file is data too: its ids, masks and segments come through unchanged."""
    call = {"id": "functions.f:0", "function": {"name": "f", "arguments": {}}}
    message = {"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": [call]}
    [first] = prepared(tmp_path, kimi_tokenizer_dir, {"messages": [{"role": "user", "content": "hi"}, message]})
    assert first["input_ids"] == IDS
    prepare_files(tmp_path / "again", kimi_tokenizer_dir, tmp_path / "out" / "samples.parquet", trust_remote_code=True)
    [second] = samples(tmp_path / "again")
    same = ("input_ids", "loss_mask", "segments", "num_tokens")
    assert {key: first[key] for key in same} == {key: second[key] for key in same}


def test_trust_is_asked_for(tmp_path: Path, kimi_tokenizer_dir: Path) -> None:
    data = write_jsonl(tmp_path / "data.jsonl", [{"input_ids": [65]}])
    with pytest.raises(ValueError, match="no tokenizer can be loaded.*--trust-remote-code"):
        prepare_files(tmp_path / "out", kimi_tokenizer_dir, data)
    assert not (tmp_path / "out").exists()


def test_parquet_metadata_is_ours(tmp_path: Path, kimi_tokenizer_dir: Path) -> None:
    from extractor.samples import SCHEMA, SamplesFile

    prepared(tmp_path, kimi_tokenizer_dir, {"input_ids": IDS})
    assert pq.read_schema(tmp_path / "out" / "samples.parquet").equals(SCHEMA)
    SamplesFile(tmp_path / "out" / "samples.parquet").check_tokens(kimi.VOCAB_SIZE)
