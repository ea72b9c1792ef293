"""A fast tokenizer of bytes, with special tokens and a chat template of choice, as a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

START, END, BOS, EOS, THINK, END_THINK = 256, 257, 258, 259, 260, 261
SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>", "</s>")
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>")

CHATML = """\
{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

# Keeps thinking in the answers after the last question only, trims line breaks, writes calls as JSON.
THINKING = """\
{%- set last = namespace(user=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > last.user -%}
{{ '<think>\\n' + m.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
{%- endif -%}
{{ m.content.strip('\\n') }}
{%- for c in m.tool_calls or [] -%}
{{ '\\n<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' }}
{{- (c.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

# Trims everything, opens with a token of its own, knows no tool role.
TRIMMING = """\
{{ '<s>' }}{%- for m in messages -%}
{%- if m.role == 'tool' -%}{{ raise_exception('no tools here') }}{%- endif -%}
{{ '<|im_start|>' + m.role + '\\n\\n' + (m.content | trim) + '<|im_end|>' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n\\n' }}{%- endif -%}"""

# Drops thinking even from the last answer, and opens it in the generation prompt.
DROPPING = """\
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}{{ '<|im_start|>' + m.content.split('</think>')[-1] + '</s>' }}
{%- else -%}{{ '<s>' + m.content }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|><think>\\n' }}{%- endif -%}"""

RAISING = "{{ raise_exception('never') }}"
TEMPLATES = {"chatml": CHATML, "thinking": THINKING, "trimming": TRIMMING, "dropping": DROPPING}


def write(folder: Path, template: str | None = CHATML) -> Path:
    """Write the tokenizer into `folder`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in PLAIN])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


def claim_twice(folder: Path, place: str) -> None:
    """Let a second token claim id 257, in the vocabulary, the added tokens or tokenizer_config.json."""
    path = folder / ("tokenizer_config.json" if place == "config" else "tokenizer.json")
    content = json.loads(path.read_text())
    if place == "vocab":
        content["model"]["vocab"]["<|other|>"] = 257
    elif place == "added":
        content["added_tokens"].append({**content["added_tokens"][1], "content": "<|other|>"})
    else:
        content["added_tokens_decoder"] = {"257": {"content": "<|other|>", "special": True}}
    path.write_text(json.dumps(content))
