"""The run as Ray metrics, which every Ray node exports to Prometheus."""

from __future__ import annotations

from ray.util.metrics import Counter, Gauge

from extractor.replicas.member import State
from extractor.replicas.status import Status

_REPLICA = ("replica", "host")


class Metrics:
    """Set by the driver alone, so that a scrape of any node shows one run once."""

    def __init__(self) -> None:
        self._tokens = Counter("extractor_tokens", "tokens sealed", _REPLICA)
        self._bytes = Counter("extractor_bytes", "bytes of hidden states sealed", _REPLICA)
        self._rate = Gauge("extractor_tokens_per_second", "mean tokens sealed per second", _REPLICA)
        self._stalled = Gauge("extractor_stalled_seconds", "seconds that the model waited for the disk", _REPLICA)
        self._working = Gauge("extractor_working", "1 while the replica's engine runs, else 0", _REPLICA)
        self._deaths = Gauge("extractor_replica_deaths", "replica processes and nodes lost in this run")
        self._returned = Gauge("extractor_leases_returned", "leases that came back unfinished in this run")
        self._left = Gauge("extractor_tokens_left", "tokens not yet sealed")
        self._told: dict[int, int] = {}

    def update(self, status: Status) -> None:
        for member in status.members:
            tags = {"replica": str(member.number), "host": member.host}
            new = member.tokens - self._told.get(member.number, 0)
            if new:
                self._told[member.number] = member.tokens
                self._tokens.inc(new, tags)
                self._bytes.inc(new * status.row_bytes, tags)
            self._rate.set(member.tokens_per_s, tags)
            self._stalled.set(member.stalled_seconds, tags)
            self._working.set(float(member.state is State.WORKING), tags)
        self._deaths.set(status.deaths)
        self._returned.set(status.leases_returned)
        self._left.set(status.total_tokens - status.tokens)
