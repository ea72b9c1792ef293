"""How records lie in a JSON text, told by its beginning."""

from __future__ import annotations

import codecs
import json
from typing import IO, Any

_HEAD_BYTES = 1 << 20


def sniff(stream: IO[bytes]) -> str:
    """The layout: "lines" (JSONL), "array" (of records), or "values" (objects over several lines, one conversation)."""
    head = stream.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    line, _, rest = head.partition(b"\n")
    line = line.rstrip()
    first = _try_parse(line)
    if head[:1] == b"{":
        opens = line.endswith((b"{", b"[", b",", b":")) and first is None and not rest.startswith(b"{")
        return "values" if opens else "lines"
    if head[:1] != b"[":
        return "lines"
    if first is None and rest.startswith(b"["):
        return "lines"
    inner = _first_element(head)
    is_message = isinstance(inner, dict) and ("role" in inner or "from" in inner)
    if first is not None:
        return "lines" if rest.strip() or is_message else "array"
    return "values" if is_message else "array"


def _try_parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _first_element(head: bytes) -> Any:
    try:
        return json.JSONDecoder(strict=False).raw_decode(head.decode("utf-8", "replace")[1:].lstrip())[0]
    except (ValueError, RecursionError):
        return None
