"""Names of shards."""

from __future__ import annotations

import re

_PATTERN = re.compile(r"shard-(\d{4,})")


def shard_name(number: int) -> str:
    return f"shard-{number:04d}"


def shard_number(name: str) -> int | None:
    match = _PATTERN.fullmatch(name)
    return int(match[1]) if match else None
