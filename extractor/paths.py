"""Options that are paths may be given as strings, as people write them in scripts."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any


def strings_to_paths(options: Any) -> None:
    """For `__post_init__` of a dataclass: make its fields of type Path (or Path | None, or tuple[Path, ...]) what they
    say they are. One path alone stands for a tuple of it."""
    for item in fields(options):
        value = getattr(options, item.name)
        if item.type in ("Path", "Path | None") and isinstance(value, str):
            object.__setattr__(options, item.name, Path(value))
        elif item.type == "tuple[Path, ...]":
            several = (value,) if isinstance(value, str | Path) else value
            object.__setattr__(options, item.name, tuple(Path(part) for part in several))
