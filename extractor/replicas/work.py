"""What is to be done and what is done: the queue, the token ids behind it, and the findings."""

from __future__ import annotations

import time
from typing import Any

from extractor.replicas.leases import LeaseQueue
from extractor.replicas.member import Member, speed_share
from extractor.replicas.seals import SealedSample
from extractor.replicas.source import SampleSource
from extractor.samples import Sample


class Work:
    """What was found in the samples of this run, once for each sample, layer and kind."""

    def __init__(self, queue: LeaseQueue, source: SampleSource, row_of: dict[str, int]) -> None:
        """`row_of`: a sample's place in the samples file."""
        self.queue = queue
        self._findings: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._source, self._row_of = source, row_of

    def lease(self, member: Member, members: list[Member]) -> tuple[Sample, ...]:
        """The next lease for `member`; empty when nothing is queued."""
        had = bool(self.queue.held(member.holder))
        rows = self.queue.take(member.holder, speed_share(member, members))
        if rows and not had:
            member.last_news = time.monotonic()  # from now on silence counts
        member.leases += bool(rows)
        return self._source.fetch(rows)

    def note(self, member: Member, sealed: list[SealedSample]) -> None:
        """`member` has sealed these; one that another replica sealed before counts once."""
        if not sealed:
            return
        member.last_news, member.failures = time.monotonic(), 0
        new = set(self.queue.seal([self._row_of[sample.sample_id] for sample in sealed]))
        self._source.drop(new)
        for sample in sealed:
            if self._row_of[sample.sample_id] in new:
                member.samples += 1
                member.tokens += sample.tokens
                self.found(sample.findings)

    def found(self, findings: list[dict[str, Any]]) -> None:
        """A replica's own account replaces what the seal says: it knows the place."""
        for finding in findings:
            key = tuple(finding[name] for name in ("sample_id", "layer_id", "kind"))
            self._findings[key] = finding

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(self._findings.values())
