"""The work queue: which samples are waiting, which replica holds which, which are sealed. Pure bookkeeping.

A sample is known by its row, its place in the samples file. Leases are runs of consecutive rows, so that the file is
read once from front to back; cut at token counts, two leases of one size differ by less than one sample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from extractor.packing import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLimits:
    """Sizes in tokens. A lease is `tail_share` of the holder's fair share of what is queued, or of what it lacks of its
    fair share of all that is unsealed, if less: large while much is left, small at the end, so that all replicas end
    within about one small lease of each other, slow ones too."""

    max_tokens: int = 1 << 20
    min_tokens: int = 8192
    tail_share: float = 0.5


class LeaseQueue:
    """Every row is in one place: queued, held by one replica, or sealed."""

    def __init__(self, rows: Ints, tokens: Ints, limits: LeaseLimits | None = None) -> None:
        """rows [N] ascending; tokens [N] of each, at least 1."""
        self.limits = limits or LeaseLimits()
        self._tokens: dict[int, int] = dict(zip(rows.tolist(), tokens.tolist(), strict=True))
        self._queued = deque(rows.tolist())
        self._held: dict[str, set[int]] = {}
        self._holder: dict[int, str] = {}
        self._sealed: set[int] = set()
        self.queued_tokens = sum(self._tokens.values())
        self.total_tokens = self.queued_tokens
        self.sealed_tokens = 0
        self.returned = 0  # leases that came back unfinished

    @property
    def done(self) -> bool:
        return len(self._sealed) == len(self._tokens)

    @property
    def total_samples(self) -> int:
        return len(self._tokens)

    @property
    def sealed_samples(self) -> int:
        return len(self._sealed)

    def held(self, holder: str) -> frozenset[int]:
        """Rows given to `holder` and not sealed."""
        return frozenset(self._held.get(holder, ()))

    def held_tokens(self, holder: str) -> int:
        return sum(self._tokens[row] for row in self._held.get(holder, ()))

    def take(self, holder: str, share: float) -> list[int]:
        """The next lease, rows in the order of the queue; empty when nothing is queued.

        `share`: the holder's part of the speed of all replicas, in (0, 1]: a slow one gets small leases.
        """
        wanted = self._lease_tokens(holder, share)
        rows: list[int] = []
        while self._queued and (not rows or wanted >= self._tokens[self._queued[0]]):
            row = self._queued.popleft()
            rows.append(row)
            wanted -= self._tokens[row]
            self.queued_tokens -= self._tokens[row]
        self._held.setdefault(holder, set()).update(rows)
        self._holder.update(dict.fromkeys(rows, holder))
        return rows

    def seal(self, rows: Iterable[int]) -> list[int]:
        """Note rows as sealed, whoever sealed them; returns those that were not yet."""
        new = [row for row in dict.fromkeys(rows) if row not in self._sealed]
        late = set()
        for row in new:
            self._sealed.add(row)
            self.sealed_tokens += self._tokens[row]
            holder = self._holder.pop(row, None)
            if holder is None:
                late.add(row)
            else:
                self._held[holder].discard(row)
        self._unqueue(late)
        return new

    def give_back(self, holder: str) -> int:
        """Put what `holder` left unsealed at the front of the queue; returns the number of samples."""
        rows = sorted(self._held.pop(holder, ()))
        for row in rows:
            del self._holder[row]
        self._queued.extendleft(reversed(rows))
        self.queued_tokens += sum(self._tokens[row] for row in rows)
        self.returned += bool(rows)
        return len(rows)

    def _lease_tokens(self, holder: str, share: float) -> int:
        lacking = share * (self.total_tokens - self.sealed_tokens) - self.held_tokens(holder)
        fair = int(self.limits.tail_share * min(lacking, share * self.queued_tokens))
        return min(self.limits.max_tokens, max(self.limits.min_tokens, fair))

    def _unqueue(self, late: set[int]) -> None:
        """Rows sealed while nobody held them: by a replica that was thought dead."""
        if late:
            self._queued = deque(row for row in self._queued if row not in late)
            self.queued_tokens -= sum(self._tokens[row] for row in late)
