"""The steps in which an engine gets going: they say nothing of how fast it will be."""

from __future__ import annotations

import time

# In the first one kernels are compiled, memory is taken from the system and the ring is touched; the next is often the
# first of another shape. On two shared CPU cores they took 1.3 s and 2.5 s where later ones took 0.05 s and 0.3 s.
STEPS = 2


class WarmUp:
    """The first steps of one rank, from its session's start: how many rows they had and how long they took."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._steps = 0
        self.tokens = 0
        self.seconds = 0.0

    def step(self, rows: int) -> None:
        """A step with `rows` rows has ended."""
        if self._steps < STEPS:
            self._steps += 1
            self.tokens += rows
            self.seconds = time.monotonic() - self._started


def steady_rate(tokens: int, seconds: float, warm_up_tokens: int, warm_up_seconds: float) -> float:
    """Tokens per second after the warm-up; of everything while nothing came after it; 0.0 while no time has passed."""
    if tokens > warm_up_tokens and seconds > warm_up_seconds:
        return (tokens - warm_up_tokens) / (seconds - warm_up_seconds)
    return tokens / seconds if seconds > 0 else 0.0
