"""vLLM's CPU platform asks every value of every loaded module for its `__dict__`. llvmlite's library object, there once
anything has imported Numba, answers any name with a function of that name, and vLLM 0.32 fails on it."""

from __future__ import annotations

from typing import Any

from llvmlite.binding import ffi


def teach_llvmlite_its_limits() -> None:
    """From now on it says that it has no attributes of two leading underscores. Idempotent."""
    library = type(ffi.lib)
    if getattr(library.__getattr__, "refuses_dunders", False):
        return
    original = library.__getattr__

    def look_up(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return original(self, name)

    look_up.refuses_dunders = True  # type: ignore[attr-defined]
    library.__getattr__ = look_up
