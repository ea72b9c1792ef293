"""What the user asked `prepare` to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from extractor.errors import UsageError
from extractor.paths import strings_to_paths

TRAINABLE = ("response", "thinking", "tool")
OVERLONG = ("truncate", "drop", "error")
TURNS = ("all", "last")
LACKING = ("inline", "reject")
FORMATS = ("auto", "messages", "sharegpt", "alpaca", "qa", "api", "nested", "raw", "ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """Options of one run. `data` names files, folders or recipes; `max_length` is in tokens (None or 0: no cap);
    `max_record_bytes` bounds one JSON record in memory; `workers` 0 means one per core."""

    data: tuple[str, ...]
    tokenizer: Path
    out: Path
    max_length: int | None = 8192
    overlong: str = "truncate"
    seed: int = 0
    train_on: tuple[str, ...] = TRAINABLE
    turns: str = "all"
    lacking: str = "inline"
    dedupe: bool = True
    data_format: str = "auto"
    chat_template: Path | None = None
    trust_remote_code: bool = False
    workers: int = 0
    max_record_bytes: int = 64 << 20
    progress: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError for a value that is not allowed."""
        strings_to_paths(self)
        data = (self.data,) if isinstance(self.data, str | Path) else self.data
        object.__setattr__(self, "data", tuple(str(name) for name in data))
        _one_of("--overlong", self.overlong, OVERLONG)
        _one_of("--turns", self.turns, TURNS)
        _one_of("--format", self.data_format, FORMATS)
        _one_of("--lacking", self.lacking, LACKING)
        for part in self.train_on:
            _one_of("--train-on", part, TRAINABLE)
        _at_least("--max-length", self.max_length, 1, none="no cap")
        _at_least("--workers", self.workers, 1, none="one per core")
        _at_least("--max-record-bytes", self.max_record_bytes, 1024)
        if not self.train_on:
            raise UsageError(f"--train-on is empty; name at least one of {', '.join(TRAINABLE)}")
        if not self.data:
            raise UsageError("there is no data; name at least one file, folder or recipe")


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{option} got {value!r}; allowed are {', '.join(allowed)}")


def _at_least(option: str, value: int | None, least: int, none: str = "") -> None:
    """`none`: what 0 means, where it is allowed although it is below `least`."""
    if value is not None and value < least and not (none and value == 0):
        raise UsageError(f"{option} got {value}; allowed are values from {least}" + (f", or 0: {none}" if none else ""))
