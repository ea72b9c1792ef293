"""Simulated nodes that work on the real lease queue: they differ in speed, die, come back, and run out of disk."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from extractor.replicas.leases import LeaseLimits, LeaseQueue
from extractor.replicas.member import share_of

_DETECT_SECONDS = 30.0
_COMMIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What nodes are like. Rates in tokens/s; `mtbf_hours` of one node; shares are of the nodes."""

    name: str
    rate: float = 30_000.0
    spread: float = 0.03
    slow_share: float = 0.0
    slow_factor: float = 0.25
    mtbf_hours: float = 0.0
    small_disk_share: float = 0.0
    small_disk_bytes: float = 300e9
    load_seconds: float = 300.0
    row_bytes: int = 43_008


@dataclass(slots=True)
class Node:
    """A replica: its true rate, its leases (rows, the first is being worked on), and when that one was begun."""

    number: int
    rate: float
    disk_bytes: float
    rng: np.random.Generator
    alive: bool = True
    known: bool = False  # its rate was measured
    leases: deque[list[int]] = field(default_factory=deque)
    begun: float = 0.0
    life: int = 0
    idle_since: float | None = None
    idle_seconds: float = 0.0

    @property
    def holder(self) -> str:
        return f"{self.number}.{self.life}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Times in seconds. `ideal` is all tokens over the sum of all rates, without failures; `tail` from the first moment
    that a node had nothing to do to the end; `lost_tokens` were computed and not yet durable."""

    world: str
    policy: str
    seconds: float
    ideal: float
    tail: float
    idle_share: float
    leases: int
    smallest: int
    largest: int
    deaths: int
    retired: int
    lost_tokens: int
    done: bool


class Simulation:
    """Events (time, order, node, life, what) in a heap; `what` is `up`, `done` or `die`."""

    def __init__(self, world: World, limits: LeaseLimits, lengths: np.ndarray, nodes: int, seed: int) -> None:
        self.world, self.lengths = world, lengths
        self.queue = LeaseQueue(np.arange(lengths.size), lengths, limits)
        self.nodes = [self._node(n, nodes, np.random.default_rng([seed, n])) for n in range(nodes)]
        self.now, self.order = 0.0, 0
        self.events: list[tuple[float, int, int, int, str]] = []
        self.sizes: list[int] = []
        self.deaths = self.retired = self.lost_tokens = 0
        self.first_idle: float | None = None

    def _node(self, number: int, nodes: int, rng: np.random.Generator) -> Node:
        slow = number < self.world.slow_share * nodes
        small = nodes - 1 - number < self.world.small_disk_share * nodes
        rate = self.world.rate * float(np.exp(rng.normal(0, self.world.spread)))
        disk = self.world.small_disk_bytes if small else np.inf
        return Node(number, rate * (self.world.slow_factor if slow else 1.0), disk, rng)

    def run(self) -> Outcome:
        for node in self.nodes:
            self._at(0.0, node, "up")
        while self.events and not self.queue.done:
            self.now, _, number, life, what = heapq.heappop(self.events)
            node = self.nodes[number]
            if life == node.life:
                getattr(self, f"_{what}")(node)
        return self._outcome()

    def _at(self, time: float, node: Node, what: str) -> None:
        self.order += 1
        heapq.heappush(self.events, (time, self.order, node.number, node.life, what))

    def _up(self, node: Node) -> None:
        node.alive = True
        if self.world.mtbf_hours:
            self._at(self.now + node.rng.exponential(self.world.mtbf_hours * 3600), node, "die")
        self._feed(node)

    def _feed(self, node: Node) -> None:
        """One lease being worked on and one ahead."""
        while len(node.leases) < 2:
            rates = [other.rate if other.known else 0.0 for other in self.nodes if other.alive]
            rows = self.queue.take(node.holder, share_of(node.rate if node.known else 0.0, rates))
            if not rows:
                break
            self.sizes.append(self._tokens(rows))
            node.leases.append(rows)
            if len(node.leases) == 1:
                self._begin(node)
        if not node.leases and node.idle_since is None:
            node.idle_since = self.now
            self.first_idle = self.now if self.first_idle is None else self.first_idle

    def _begin(self, node: Node) -> None:
        if node.idle_since is not None:
            node.idle_seconds += self.now - node.idle_since
            node.idle_since = None
        node.begun = self.now
        tokens = self._tokens(node.leases[0])
        room = node.disk_bytes / self.world.row_bytes
        if tokens > room:
            self._at(self.now + room / node.rate, node, "fill")
        else:
            self._at(self.now + tokens / node.rate, node, "done")

    def _done(self, node: Node) -> None:
        rows = node.leases.popleft()
        node.known = True
        node.disk_bytes -= self._tokens(rows) * self.world.row_bytes
        self.queue.seal(rows)
        if node.leases:
            self._begin(node)
        self._feed(node)

    def _die(self, node: Node) -> None:
        self.deaths += 1
        self._stop(node, _COMMIT_SECONDS * node.rng.random())
        self._at(self.now + _DETECT_SECONDS + self.world.load_seconds, node, "up")

    def _fill(self, node: Node) -> None:
        self.retired += 1
        self._stop(node, 0.0)

    def _stop(self, node: Node, unsaved_seconds: float) -> None:
        """What was committed stays, the rest goes back; those that idle are given it."""
        if node.leases:
            worked = (self.now - node.begun) * node.rate
            saved = max(0.0, worked - unsaved_seconds * node.rate)
            ends = np.cumsum(self.lengths[node.leases[0]])
            sealed = int(np.searchsorted(ends, saved, side="right"))
            self.queue.seal(node.leases[0][:sealed])
            self.lost_tokens += int(worked - (ends[sealed - 1] if sealed else 0))
        self.queue.give_back(node.holder)
        node.leases.clear()
        node.alive = False
        node.life += 1
        for other in self.nodes:
            if other.alive:
                self._feed(other)

    def _tokens(self, rows: Sequence[int]) -> int:
        return int(self.lengths[rows].sum())

    def _outcome(self) -> Outcome:
        for node in self.nodes:
            if node.idle_since is not None:
                node.idle_seconds += self.now - node.idle_since
        limits = self.queue.limits
        return Outcome(
            world=self.world.name,
            policy=f"{limits.min_tokens:,} to {limits.max_tokens:,}",
            seconds=self.now,
            ideal=float(self.lengths.sum()) / sum(node.rate for node in self.nodes),
            tail=self.now - (self.first_idle if self.first_idle is not None else self.now),
            idle_share=sum(node.idle_seconds for node in self.nodes) / (self.now * len(self.nodes)),
            leases=len(self.sizes),
            smallest=min(self.sizes),
            largest=max(self.sizes),
            deaths=self.deaths,
            retired=self.retired,
            lost_tokens=self.lost_tokens,
            done=self.queue.done,
        )
