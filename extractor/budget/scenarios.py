"""What if: sources dropped, sub-sampled, samples capped, and what each choice costs and saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from extractor.budget.lengths import LengthCounts, merged
from extractor.errors import UsageError

# A source is out of proportion when its share of the tokens is at least twice its share of the samples, and large
# enough to matter. The seed corpus has one such source of ten, at 4.6 times.
HEAVY_RATIO = 2.0
HEAVY_SHARE = 0.05

Corpus = Mapping[str, LengthCounts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to do to the corpus: sources to leave out, samples to draw by source, and a cap in tokens (None = none)."""

    drop: tuple[str, ...] = ()
    take: Mapping[str, int] = field(default_factory=dict)
    cap: int | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        parts = [f"without {source}" for source in self.drop]
        parts += [f"{count:,} of {source}" for source, count in self.take.items()]
        parts += [f"capped at {self.cap:,}"] if self.cap else []
        return ", ".join(parts) or "as is"

    def apply(self, corpus: Corpus) -> LengthCounts:
        """The lengths that are left of `corpus`. Raises UsageError when a source has fewer samples than asked for."""
        return merged([part for name, lengths in corpus.items() if (part := self._part(name, lengths)) is not None])

    def _part(self, name: str, lengths: LengthCounts) -> LengthCounts | None:
        if name in self.drop:
            return None
        if name in self.take:
            lengths = lengths.draw(self.take[name], self.seed, name)
        return lengths.capped(self.cap)


def find_source(text: str, names: Sequence[str], option: str) -> str:
    """The source that `text` means: its name, or the part of exactly one name before a `_`, `-` or `.`.

    Raises UsageError when none or several match.
    """
    if text in names:
        return text
    matches = [name for name in names if text and name.startswith(text) and name[len(text)] in "_-."]
    if len(matches) == 1:
        return matches[0]
    found = "matches " + ", ".join(matches) if matches else "is no source"
    raise UsageError(f"{option} {text!r} {found}; the sources are {', '.join(names)}; name one of them")


def is_heavy(token_share: float, sample_share: float) -> bool:
    return token_share >= HEAVY_SHARE and token_share >= HEAVY_RATIO * sample_share


def heavy_sources(corpus: Corpus) -> list[str]:
    """The sources out of proportion, by tokens, most first."""
    tokens = sum(lengths.tokens for lengths in corpus.values())
    samples = sum(lengths.samples for lengths in corpus.values())
    heavy = [name for name, part in corpus.items() if is_heavy(part.tokens / tokens, part.samples / samples)]
    return sorted(heavy, key=lambda name: -corpus[name].tokens)


def scenarios(chosen: Choice, heavy: Sequence[str], cap: int) -> list[Choice]:
    """As is, capped, each candidate dropped and each sub-sample taken (alone and capped), then all of it as chosen.

    `chosen` is what the command asks for; without a drop of its own the heavy sources are candidates. `cap` is the
    one shown where `chosen` has none.
    """
    seed, cap = chosen.seed, chosen.cap or cap
    changes = [Choice(seed=seed)] + [Choice(drop=(name,), seed=seed) for name in chosen.drop or heavy]
    if len(chosen.drop) > 1:
        changes.append(Choice(drop=chosen.drop, seed=seed))
    changes += [Choice(take={name: count}, seed=seed) for name, count in chosen.take.items()]
    if len(chosen.take) > 1 or (chosen.drop and chosen.take):
        changes.append(Choice(drop=chosen.drop, take=chosen.take, seed=seed))
    return [row for change in changes for row in (change, replace(change, cap=cap))]
