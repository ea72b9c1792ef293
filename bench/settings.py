"""What can be set from outside, by `extractor bench` or by hand: where to write, and whether sizes are toys."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

TOY = bool(os.environ.get("EXTRACTOR_BENCH_TOY"))
DISK = Path(os.environ.get("EXTRACTOR_BENCH_DIR") or tempfile.gettempdir())
MEMORY = Path(os.environ.get("EXTRACTOR_BENCH_MEMORY") or "/dev/shm")


def size(full: T, toy: T) -> T:
    """Toy sizes only show that a benchmark runs."""
    return toy if TOY else full
