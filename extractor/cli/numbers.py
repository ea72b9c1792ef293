"""Numbers on the command line: out of range is wrong usage, said before anything is read or loaded."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def at_least(least: int, meaning: str = "") -> Callable[[str], int]:
    """An argparse type: an integer of `least` or more. `meaning` says what the least value stands for."""

    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer; give one of at least {least}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is too small; give an integer of at least {least}{meaning}")
        return value

    return integer


def share(text: str) -> float:
    """An argparse type: a number from 0 to 1. Not a number is none."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number; give one from 0 to 1, such as 0.05") from None
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share; give a number from 0 to 1, such as 0.05")
    return value
