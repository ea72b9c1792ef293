"""Commands that messages tell a person to run: whatever a path holds, they can be pasted."""

from __future__ import annotations

import shlex


def shell_command(*words: object) -> str:
    """The words as one line for a shell, each quoted where it needs to be."""
    return shlex.join(map(str, words))
