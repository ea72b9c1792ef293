"""A tokenizer folder with the special tokens of Kimi-K2.5 at their real ids, slow and without character positions.

Ordinary tokens are the 256 bytes and a few words; words with a known real id have it. The code of the folder's own
tokenizer class is in `tokenization_standin.py` beside this file, so it loads with `trust_remote_code` only.
"""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

VOCAB_SIZE = 163840
BOS, EOS, IM_END, IM_USER, IM_ASSISTANT, IM_SYSTEM, IM_MIDDLE = 163584, 163585, 163586, 163587, 163588, 163594, 163601
SECTION_BEGIN, SECTION_END, CALL_BEGIN, ARGUMENT_BEGIN, CALL_END = 163595, 163596, 163597, 163598, 163599
THINK, END_THINK = 163606, 163607
WORDS = {"assistant": 69702, "user": 2482, "system": 14062, "tool": 300, "Cold": 301, "Ask": 302}
NAMED = {
    BOS: "[BOS]",
    EOS: "[EOS]",
    IM_END: "<|im_end|>",
    IM_USER: "<|im_user|>",
    IM_ASSISTANT: "<|im_assistant|>",
    163590: "<|start_header_id|>",
    163591: "<|end_header_id|>",
    163593: "[EOT]",
    IM_SYSTEM: "<|im_system|>",
    SECTION_BEGIN: "<|tool_calls_section_begin|>",
    SECTION_END: "<|tool_calls_section_end|>",
    CALL_BEGIN: "<|tool_call_begin|>",
    ARGUMENT_BEGIN: "<|tool_call_argument_begin|>",
    CALL_END: "<|tool_call_end|>",
    IM_MIDDLE: "<|im_middle|>",
    163602: "<|media_begin|>",
    163603: "<|media_content|>",
    163604: "<|media_end|>",
    163605: "<|media_pad|>",
    THINK: "<think>",
    END_THINK: "</think>",
    163838: "[UNK]",
    163839: "[PAD]",
}
NOT_SPECIAL = range(SECTION_BEGIN, CALL_END + 1)

# The rules of K2.5's rendering: thinking stays in answers after the last answer without tool calls and is emptied
# everywhere else; the generation prompt opens the thinking.
TEMPLATE = """\
{%- macro text(m) -%}{{ m.content if m.content is string else '' }}{%- endmacro -%}
{%- set seen = namespace(last=-1) -%}
{%- for m in messages -%}
  {%- if m.role == 'assistant' and not m.tool_calls -%}{%- set seen.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}
{%- for m in messages -%}
  {%- if m.role == 'assistant' -%}
    <|im_assistant|>assistant<|im_middle|><think>
    {%- if loop.index0 > seen.last and m.reasoning_content -%}{{ m.reasoning_content }}{%- endif -%}
    </think>{{ text(m) }}
    {%- if m.tool_calls -%}
      <|tool_calls_section_begin|>
      {%- for call in m.tool_calls -%}
        {%- set given = call.function.arguments -%}
        <|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>
        {{- given if given is string else given | tojson }}<|tool_call_end|>
      {%- endfor -%}
      <|tool_calls_section_end|>
    {%- endif -%}
  {%- elif m.role == 'tool' -%}
    <|im_system|>{{ m.name or 'tool' }}<|im_middle|>## Return of {{ m.tool_call_id }}\n{{ text(m) }}
  {%- else -%}
    <|im_{{ m.role }}|>{{ m.name or m.role }}<|im_middle|>{{ text(m) }}
  {%- endif -%}
  <|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|><think>{%- endif -%}
"""


def write(folder: Path, more: dict[int, str] | None = None) -> Path:
    """Write the tokenizer into `folder`; `more` are further ordinary tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = {bytes([i]): i for i in range(256)} | {word.encode(): number for word, number in WORDS.items()}
    ranks |= {word.encode() * 9: number for number, word in (more or {}).items()}
    lines = [f"{base64.b64encode(token).decode()} {number}" for token, number in ranks.items()]
    (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")
    special = {i: NAMED.get(i, f"<|reserved_token_{i}|>") for i in range(BOS, VOCAB_SIZE)}
    decoder = {
        str(i): {"content": token, "special": i not in NOT_SPECIAL, "normalized": False, "lstrip": False}
        for i, token in special.items()
    }
    config = {
        "tokenizer_class": "StandInTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_standin.StandInTokenizer", None]},
        "added_tokens_decoder": decoder,
        "chat_template": TEMPLATE,
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    shutil.copy(Path(__file__).with_name("tokenization_standin.py"), folder)
    return folder
