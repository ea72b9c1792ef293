"""What happened when, as JSON lines beside the run's record: for people after a bad night, and for tools."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any


class EventLog:
    """One line an event: `time` (UTC, ms), `event`, and the event's own fields."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.write("end", error=None if error is None else str(error))
        self._file.close()

    def write(self, event: str, **fields: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._file.write(json.dumps({"time": now, "event": event, **fields}) + "\n")
        self._file.flush()
