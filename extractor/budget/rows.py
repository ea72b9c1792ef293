"""The rows of a plan's tables. Field names are the keys of `--json`, so each carries its unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from extractor.budget.lengths import LengthCounts, merged
from extractor.budget.rates import Rate
from extractor.budget.scenarios import Choice, Corpus, is_heavy


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What tokens cost. `codec_ratio`: the share of the size that the lossless codec leaves; None when not measured."""

    bytes_per_token: int
    rate: Rate | None
    codec_ratio: float | None

    def size_bytes(self, tokens: int) -> int:
        return tokens * self.bytes_per_token

    def hours(self, tokens: int) -> float | None:
        return self.rate.hours(tokens) if self.rate else None

    def coded_bytes(self, tokens: int) -> int | None:
        return round(self.size_bytes(tokens) * self.codec_ratio) if self.codec_ratio is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    source: str
    samples: int
    tokens: int
    sample_share: float
    token_share: float
    mean_tokens: float
    p50_tokens: int
    p90_tokens: int
    p99_tokens: int
    longest_tokens: int
    size_bytes: int
    hours: float | None
    heavy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRow:
    cap_tokens: int
    chosen: bool
    kept_tokens: int
    dropped_tokens: int
    truncated_samples: int
    size_bytes: int
    coded_bytes: int | None
    hours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioRow:
    scenario: str
    chosen: bool
    samples: int
    tokens: int
    size_bytes: int
    coded_bytes: int | None
    hours: float | None
    saved_bytes: int
    saved_hours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Samples of at least `from_tokens` and fewer than `below_tokens`."""

    from_tokens: int
    below_tokens: int
    samples: int
    tokens: int


def source_rows(corpus: Corpus, price: Price) -> list[SourceRow]:
    """One row per source, by tokens, most first."""
    total = merged(list(corpus.values()))
    rows = [_source_row(name, lengths, total, price) for name, lengths in corpus.items()]
    return sorted(rows, key=lambda row: -row.tokens)


def total_row(corpus: Corpus, price: Price) -> SourceRow:
    total = merged(list(corpus.values()))
    return _source_row("total", total, total, price)


def _source_row(name: str, lengths: LengthCounts, total: LengthCounts, price: Price) -> SourceRow:
    sample_share, token_share = lengths.samples / total.samples, lengths.tokens / total.tokens
    return SourceRow(
        source=name,
        samples=lengths.samples,
        tokens=lengths.tokens,
        sample_share=sample_share,
        token_share=token_share,
        mean_tokens=lengths.mean,
        p50_tokens=lengths.percentile(50),
        p90_tokens=lengths.percentile(90),
        p99_tokens=lengths.percentile(99),
        longest_tokens=lengths.longest,
        size_bytes=price.size_bytes(lengths.tokens),
        hours=price.hours(lengths.tokens),
        heavy=is_heavy(token_share, sample_share),
    )


def cap_rows(lengths: LengthCounts, caps: Sequence[int], chosen: int | None, price: Price) -> list[CapRow]:
    """One row per cap, `chosen` among them, ascending; applied to `lengths`."""
    return [_cap_row(lengths, cap, cap == chosen, price) for cap in sorted({*caps, *([chosen] if chosen else [])})]


def _cap_row(lengths: LengthCounts, cap: int, chosen: bool, price: Price) -> CapRow:
    kept = lengths.capped(cap).tokens
    return CapRow(
        cap_tokens=cap,
        chosen=chosen,
        kept_tokens=kept,
        dropped_tokens=lengths.tokens - kept,
        truncated_samples=lengths.longer_than(cap),
        size_bytes=price.size_bytes(kept),
        coded_bytes=price.coded_bytes(kept),
        hours=price.hours(kept),
    )


def scenario_rows(corpus: Corpus, choices: Sequence[Choice], chosen: Choice, price: Price) -> list[ScenarioRow]:
    """One row per choice; the first is what the savings are measured against."""
    applied = [choice.apply(corpus) for choice in choices]
    base = applied[0].tokens
    return [_scenario_row(c, c == chosen, kept, base, price) for c, kept in zip(choices, applied, strict=True)]


def _scenario_row(choice: Choice, chosen: bool, kept: LengthCounts, base_tokens: int, price: Price) -> ScenarioRow:
    return ScenarioRow(
        scenario=choice.name,
        chosen=chosen,
        samples=kept.samples,
        tokens=kept.tokens,
        size_bytes=price.size_bytes(kept.tokens),
        coded_bytes=price.coded_bytes(kept.tokens),
        hours=price.hours(kept.tokens),
        saved_bytes=price.size_bytes(base_tokens - kept.tokens),
        saved_hours=price.hours(base_tokens - kept.tokens),
    )


def histogram(lengths: LengthCounts) -> list[Bin]:
    """Samples and tokens by power of two, from the bin of the shortest to that of the longest."""
    exponents = np.frexp(lengths.lengths.astype(np.float64))[1] - 1  # floor(log2); exact below 2**53
    low, high = int(exponents[0]), int(exponents[-1])
    bins = []
    for exponent in range(low, high + 1):
        here = exponents == exponent
        samples, tokens = lengths.counts[here].sum(), lengths.lengths[here] @ lengths.counts[here]
        bins.append(
            Bin(from_tokens=1 << exponent, below_tokens=2 << exponent, samples=int(samples), tokens=int(tokens))
        )
    return bins
