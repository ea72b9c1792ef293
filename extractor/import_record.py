"""What an import leaves in a store, by which anybody can tell whether the whole folder is in it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from extractor.output import write_whole

NAME = "import.json"


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """files: samples that the imported folder held.  rejected: those of them that could not be taken; None until the
    import has ended."""

    files: int
    rejected: int | None

    def save(self, store: Path) -> None:
        """Raises StoreError."""
        write_whole(store / NAME, (json.dumps(asdict(self)) + "\n").encode())

    @classmethod
    def load(cls, store: Path) -> ImportRecord | None:
        """None where there is none that can be read."""
        try:
            raw = json.loads((store / NAME).read_text(encoding="utf-8"))
            return cls(int(raw["files"]), None if raw["rejected"] is None else int(raw["rejected"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
