"""A recipe: a YAML file that names sources, maps their fields and says how much of each is taken.

sources:
  - name: code            # default: the path's name
    path: [a.jsonl, more/*.parquet]
    format: messages      # default: recognised record by record
    map: {messages: dialogue.turns}
    take: 500             # samples, drawn with the seed; or fraction: 0.1, or weight: 2
    max_tokens: 5000000   # at most so many tokens, drawn with the seed
    max_length: 4096      # instead of --max-length
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extractor.errors import InputError
from extractor.prepare.options import FORMATS

_KEYS = ("name", "path", "format", "map", "take", "fraction", "weight", "max_tokens", "max_length")
_SHARES = ("take", "fraction", "weight")


@dataclass(frozen=True, slots=True)
class Entry:
    """One source of a recipe. At most one of `take` (samples), `fraction` and `weight` is set."""

    name: str = ""
    paths: tuple[str, ...] = ()
    data_format: str = "auto"
    field_map: dict[str, str] = field(default_factory=dict)
    take: int | None = None
    fraction: float | None = None
    weight: float | None = None
    max_tokens: int | None = None
    max_length: int | None = None

    @property
    def draws(self) -> bool:
        return any(value is not None for value in (self.take, self.fraction, self.weight, self.max_tokens))


def read_recipe(path: Path) -> list[Entry]:
    """Raises InputError, naming the key, for anything that is not a recipe."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"recipe {path} can't be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or set(content) != {"sources"} or not isinstance(content["sources"], list):
        raise InputError(f"recipe {path} must hold one key, sources, with a list; see `extractor prepare --help`")
    return [_entry(item, f"source {i} of recipe {path}") for i, item in enumerate(content["sources"])]


def _entry(item: Any, where: str) -> Entry:
    if not isinstance(item, dict) or "path" not in item:
        raise InputError(f"{where} must be a mapping with a path; known keys are {', '.join(_KEYS)}")
    unknown = [str(key) for key in item if key not in _KEYS]
    if unknown:
        raise InputError(f"{where} has the unknown key {unknown[0]!r}; known are {', '.join(_KEYS)}")
    if sum(key in item for key in _SHARES) > 1:
        raise InputError(f"{where} has more than one of {', '.join(_SHARES)}; keep one")
    paths = item["path"] if isinstance(item["path"], list) else [item["path"]]
    return Entry(
        name=str(item.get("name") or Path(str(paths[0])).name.partition(".")[0]),
        paths=tuple(str(path) for path in paths),
        data_format=_format(item.get("format", "auto"), where),
        field_map=_field_map(item.get("map", {}), where),
        take=_number(item, "take", int, lambda value: value >= 0, where),
        fraction=_number(item, "fraction", float, lambda value: 0 <= value <= 1, where),
        weight=_number(item, "weight", float, lambda value: value > 0, where),
        max_tokens=_number(item, "max_tokens", int, lambda value: value > 0, where),
        max_length=_number(item, "max_length", int, lambda value: value > 0, where),
    )


def _format(value: Any, where: str) -> str:
    if value not in FORMATS:
        raise InputError(f"{where} has the format {value!r}; allowed are {', '.join(FORMATS)}")
    return str(value)


def _field_map(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise InputError(f"map in {where} must map our field names to the record's, as in map: {{messages: dialogue}}")
    return {str(key): name for key, name in value.items()}


def _number(item: dict[str, Any], key: str, kind: type, allowed: Callable[[Any], bool], where: str) -> Any:
    value = item.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, kind)) or not allowed(value):
        raise InputError(f"{key} in {where} is {value!r}; allowed are {_allowed(key)}")
    return value


def _allowed(key: str) -> str:
    return {"fraction": "numbers from 0 to 1", "weight": "numbers above 0"}.get(
        key, "whole numbers from 1 (take: from 0)"
    )
