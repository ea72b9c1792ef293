"""Real and constructed corpora: good records come through, every defect has its reason, none vanishes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prepare_cases import prepare_files, rejects, samples

# What is not kept, of all 26 files together. Everything else in a file is kept.
DUPLICATE = {
    "chatterbot_multilingual_a": 32,
    "dirty_bytes_a": 1,
    "dirty_records_a": 2,
    "llamafactory_glaive_toolcall_en": 38,
    "llamafactory_v1_sft_identity_parts": 50,  # the same texts as llamafactory_identity_alpaca
    "pydanticai_chat_completions": 107,
    "torchspec_kimi_k25": 1,
    "torchspec_sample_conversations": 37,
    "unicode_conversations": 1,
}
REFUSED = {
    "bfcl_v4_parallel_multiple": {"no_answer": 200},
    "blns": {"unknown_shape": 485},
    "llamafactory_mllm_demo": {"image_content": 6},
    "pydanticai_chat_completions": {
        "bad_tool_call": 6,
        "image_content": 9,
        "media_content": 4,
        "no_trained_token": 1,
        "not_text": 3,
        "unclosed_thinking": 1,
    },
    "specforge_tool_use_conversation": {"tool_arguments": 1},
    "torchspec_kimi_k25": {"image_content": 3},
}
DIRTY_RECORDS = {
    0: "no_messages",
    2: "no_assistant_turn",
    3: "no_trained_token",
    7: "tool_arguments",
    9: "orphan_tool_result",
    13: "image_content",
    19: "turn_token_in_text",
    20: "unclosed_thinking",
    23: "no_messages",
    25: "not_text",
}
DIRTY_BYTES = {1: "invalid_utf8", 2: "broken_json", 3: "lone_surrogate", 6: "broken_json", 8: "broken_json"}


@pytest.fixture(scope="module")
def prepared(shared_data: Path, tiny_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = sorted(path for path in (shared_data / "corpora").glob("*.json*") if path.name != "DIRTY_MANIFEST.json")
    out = tmp_path_factory.mktemp("corpora")
    prepare_files(out, tiny_tokenizer_dir, *files, max_length=None)
    return out


def report(prepared: Path) -> dict[str, Any]:
    return dict(json.loads((prepared / "report.json").read_text()))


def test_every_record_of_every_file_is_accounted_for(prepared: Path) -> None:
    sources = report(prepared)["sources"]
    assert len(sources) == 26
    assert sum(source["records"]["read"] for source in sources.values()) == 6120
    dirty = {"dirty_records_a": Counter(DIRTY_RECORDS.values()), "dirty_bytes_a": Counter(DIRTY_BYTES.values())}
    for name, source in sources.items():
        records = source["records"]
        refused = {**REFUSED, **dirty}.get(name, {})
        assert {**records["rejected"], **records["dropped"]} == refused, name
        assert records["duplicate"] == DUPLICATE.get(name, 0), name
        assert records["kept"] == records["read"] - sum(refused.values()) - DUPLICATE.get(name, 0), name


@pytest.mark.parametrize(("name", "rows"), [("dirty_records_a", DIRTY_RECORDS), ("dirty_bytes_a", DIRTY_BYTES)])
def test_defects_row_by_row(prepared: Path, name: str, rows: dict[int, str]) -> None:
    assert {r["record"]: r["reason"] for r in rejects(prepared) if r["source"] == name} == rows


def test_offsets_lead_to_the_rejected_lines(prepared: Path, shared_data: Path) -> None:
    content = (shared_data / "corpora" / "dirty_bytes_a.jsonl").read_bytes()
    lines = content.split(b"\n")
    for reject in rejects(prepared):
        if reject["source"] == "dirty_bytes_a":
            assert content[reject["offset"] :].split(b"\n")[0] == lines[reject["record"]]


def test_texts_come_through_unchanged(prepared: Path, shared_data: Path, tiny_tokenizer_dir: Path) -> None:
    """Line breaks, control characters and whatever else the answers of odd texts hold."""
    from extractor.prepare.tokens import load_tokenizer

    tokenizer = load_tokenizer(tiny_tokenizer_dir)
    lines = (shared_data / "corpora" / "unicode_conversations.jsonl").read_text(encoding="utf-8").split("\n")
    kept = 0
    for row in samples(prepared):
        if row["source"] == "unicode_conversations":
            messages = json.loads(lines[row["origin"]["record"]])["messages"]
            answers = [m["content"] + "<|im_end|>" for m in messages if m["role"] == "assistant" and m["content"]]
            spans = [(s["start"], s["end"]) for s in row["segments"] if s["kind"] == "response"]
            assert [tokenizer.decode(row["input_ids"][a:b]) for a, b in spans] == answers
            kept += 1
    assert kept == 87


def test_repairs_are_counted(prepared: Path) -> None:
    sources = report(prepared)["sources"]
    assert sources["dirty_records_a"]["repairs"] == {
        "greeting_untrained": 2,
        "result_id_filled": 1,
        "thinking_inlined": 1,
        "tool_calls_inlined": 3,
    }
    assert sources["dirty_real_axolotl_missingturns"]["repairs"] == {"empty_turn_untrained": 1}
    assert sources["taubench_airline_gpt4o_120"]["repairs"] == {"tool_calls_inlined": 107, "trailing_turns_cut": 120}
