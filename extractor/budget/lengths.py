"""Sample lengths as a multiset: everything a plan needs, in memory that does not grow with the number of samples."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from extractor.errors import UsageError
from extractor.sizes import counted

Int64s = npt.NDArray[np.int64]

# numpy's hypergeometric sampler is exact only below this many samples.
_MAX_DRAWN_FROM = 10**9


@dataclass(frozen=True, slots=True)
class LengthCounts:
    """`counts[i]` samples have `lengths[i]` tokens. Both [K] int64; lengths ascending and distinct, counts positive."""

    lengths: Int64s
    counts: Int64s

    @classmethod
    def from_dense(cls, dense: Int64s) -> LengthCounts:
        """`dense` [max length + 1] int64: the number of samples of each length."""
        lengths = np.flatnonzero(dense).astype(np.int64)
        return cls(lengths, dense[lengths])

    @classmethod
    def of(cls, lengths: npt.ArrayLike) -> LengthCounts:
        """The multiset of `lengths` [N], any integer type."""
        return cls(*(a.astype(np.int64) for a in np.unique(np.asarray(lengths), return_counts=True)))

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        return int(self.lengths @ self.counts)

    @property
    def mean(self) -> float:
        """Tokens per sample; 0.0 of nothing."""
        return self.tokens / self.samples if self.samples else 0.0

    @property
    def longest(self) -> int:
        return int(self.lengths[-1]) if self.lengths.size else 0

    def percentile(self, percent: float) -> int:
        """Nearest rank: the smallest length that at least `percent` % of the samples do not exceed; 0 of nothing."""
        if not self.lengths.size:
            return 0
        cumulative = np.cumsum(self.counts)
        rank = max(1, int(np.ceil(self.samples * percent / 100)))
        return int(self.lengths[np.searchsorted(cumulative, rank)])

    def longer_than(self, cap: int) -> int:
        """The number of samples that a cap of `cap` tokens truncates."""
        return int(self.counts[self.lengths > cap].sum())

    def capped(self, cap: int | None) -> LengthCounts:
        """Each sample cut to its first `cap` tokens; None keeps all."""
        if cap is None or self.longest <= cap:
            return self
        cut = self.lengths >= cap
        lengths = np.append(self.lengths[~cut], np.int64(cap))
        return LengthCounts(lengths, np.append(self.counts[~cut], self.counts[cut].sum()))

    def draw(self, samples: int, seed: int, name: str) -> LengthCounts:
        """`samples` of them, uniformly without replacement: the same for the same seed, name and multiset.

        Raises UsageError when there are fewer, or too many to draw from exactly.
        """
        if samples > self.samples:
            raise UsageError(
                f"--take {name}={samples} asks for more than the {counted(self.samples, 'sample')} of {name}; "
                f"take 1 to {self.samples}, or leave the source whole"
            )
        if self.samples >= _MAX_DRAWN_FROM:
            raise UsageError(f"--take can draw from fewer than {_MAX_DRAWN_FROM} samples; {name} has {self.samples}")
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        drawn = generator.multivariate_hypergeometric(self.counts, samples, method="marginals")
        kept = drawn > 0
        return LengthCounts(self.lengths[kept], drawn[kept].astype(np.int64))


def merged(parts: list[LengthCounts]) -> LengthCounts:
    """The multiset union, counting every sample of every part."""
    size = max((part.longest for part in parts), default=0) + 1
    dense = np.zeros(size, np.int64)
    for part in parts:
        dense[part.lengths] += part.counts
    return LengthCounts.from_dense(dense)
