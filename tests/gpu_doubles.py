"""Stand-ins for the time and for what fails, shared by the tests of bench/gpu_*.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable


def always() -> bool:
    return True


def never() -> bool:
    return False


def after(calls: int) -> Callable[[], bool]:
    """Over once it has been asked `calls` times."""
    asked = itertools.count()
    return lambda: next(asked) >= calls


def broken(*arguments: object, **rest: object) -> None:
    raise RuntimeError("PassManager::run failed\nand 200 lines of what the compiler saw")
