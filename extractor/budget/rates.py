"""Tokens per second, and where the number comes from: a past run, a stated rate, or a timed one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from extractor.budget.units import parse_quantity
from extractor.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast tokens go through. `slowest` and `fastest` bound what was seen when it was measured more than once."""

    tokens_per_s: float
    origin: str
    repeats: int = 1
    slowest_tokens_per_s: float
    fastest_tokens_per_s: float

    @property
    def spread(self) -> float:
        """(fastest - slowest) / median of the repeats; 0.0 of a single figure, which says nothing about its spread."""
        return (self.fastest_tokens_per_s - self.slowest_tokens_per_s) / self.tokens_per_s

    def hours(self, tokens: int) -> float:
        return tokens / self.tokens_per_s / 3600


def stated(tokens_per_s: float, origin: str) -> Rate:
    """A rate that somebody vouches for."""
    return Rate(
        tokens_per_s=tokens_per_s,
        origin=origin,
        slowest_tokens_per_s=tokens_per_s,
        fastest_tokens_per_s=tokens_per_s,
    )


def measured(rates: Sequence[float], origin: str) -> Rate:
    """The median of the repeats `rates` (tokens/s, at least one)."""
    return Rate(
        tokens_per_s=median(rates),
        origin=origin,
        repeats=len(rates),
        slowest_tokens_per_s=min(rates),
        fastest_tokens_per_s=max(rates),
    )


def parse_baseline(text: str) -> Rate:
    """`23.1M/19` or `23100000/19h`: tokens that a past run did, and its hours. Raises UsageError."""
    tokens_text, slash, hours_text = text.partition("/")
    tokens, hours = parse_quantity(tokens_text), parse_quantity(hours_text.strip().removesuffix("h"))
    if not slash or tokens is None or hours is None or tokens <= 0 or hours <= 0:
        raise UsageError(
            f"--baseline {text!r} is not TOKENS/HOURS with both above zero; give what a past run did, such as 23.1M/19"
        )
    return stated(float(tokens / hours / 3600), f"baseline of {tokens_text.strip()} tokens in {float(hours):g} h")


def parse_rate(text: str) -> Rate:
    """`338` or `30k`: tokens per second. Raises UsageError."""
    value = parse_quantity(text)
    if value is None or value <= 0:
        raise UsageError(f"--rate {text!r} is not a rate above zero; give tokens per second, such as 338 or 30k")
    return stated(float(value), f"stated rate of {text.strip()} tokens/s")
