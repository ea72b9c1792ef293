"""The error for a sample id that a store does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from extractor.errors import StoreError


class MissingSampleError(StoreError, KeyError):
    """A sample id that the store does not list. The ids alike take a scan of all, which nobody who catches this shall
    pay for: they are looked for when it is printed."""

    def __init__(self, message: str, nearest: Callable[[], list[str]] | None = None) -> None:
        super().__init__(message)
        self._nearest = nearest

    def __str__(self) -> str:
        if self._nearest is None:
            return str(self.args[0])
        return f"{self.args[0]}; nearest: {', '.join(map(repr, self._nearest())) or 'none alike'}"

    def __reduce__(self) -> tuple[Any, ...]:
        return MissingSampleError, (str(self),)
