"""`HiddenStateDataset`: an epoch's batches of one rank, resumable to the sample."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from extractor.batching import attention_costs
from extractor.errors import UsageError
from extractor.loader.batch import Batch, BatchOptions, BatchReader
from extractor.loader.epoch import WINDOW, EpochPlan, plan_epoch
from extractor.loader.position import SharedStart
from extractor.loader.prefetch import BatchLoader
from extractor.loader.ranks import resolve_ranks
from extractor.loader.samples import SampleSet, Stores

STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """What decides which samples share a batch. token_budget: most tokens in one.  seed: of the shuffle; None keeps the
    stores' order.  window: samples packed together.  attention_cost: balance ranks by T * (1 + T / (6 H)), not by T."""

    token_budget: int
    seed: int | None = 0
    window: int = WINDOW
    attention_cost: bool = False


class HiddenStateDataset(IterableDataset[Batch]):
    """Packed batches of whole samples for one rank; see BatchReader.read for what is in one, and for `skipped`.

    Each pass over it is one epoch in an order decided by (seed, epoch), the same on every rank; every rank gets as many
    batches, of like cost. Use `loader()` to prefetch in a thread, or any torch DataLoader with batch_size=None (its
    workers share the epoch batch by batch: the order does not depend on their number; call `set_epoch` before each
    pass, since what workers have read does not tell this process where the trainer is).
    """

    def __init__(
        self,
        stores: Stores,
        token_budget: int,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int | None = 0,
        *,
        sample_ids: Iterable[str] | None = None,
        options: BatchOptions | None = None,
        window: int = WINDOW,
        attention_cost: bool = False,
    ) -> None:
        """stores: open stores or their paths.  rank, world_size: torch.distributed's when left out.  sample_ids: only
        these. Raises UsageError for a sample over the budget or more ranks than samples, and what SampleSet raises."""
        super().__init__()
        self.samples = SampleSet(stores, sample_ids)
        self.order = OrderOptions(token_budget=token_budget, seed=seed, window=window, attention_cost=attention_cost)
        self.rank, self.world_size = resolve_ranks(rank, world_size)
        self.epoch = 0
        self._first = 0  # step at which the next pass starts
        self._done = 0  # batches that this worker has handed out since then
        self._shared = SharedStart()
        self._turn = 0  # of the shared start that this process follows
        self._begun: tuple[int, int, int] | None = None  # where this worker's pass started, until it ends
        self._reader = BatchReader(self.samples, options or BatchOptions())
        self._plan: tuple[int, EpochPlan] | None = None
        self.plan()

    def __len__(self) -> int:
        """Batches of this rank in the current epoch (epochs may differ by a few)."""
        return self.plan().num_steps

    def plan(self) -> EpochPlan:
        """The current epoch's batches on all ranks."""
        if self._plan is None or self._plan[0] != self.epoch:
            lengths = self.samples.lengths
            costs = attention_costs(lengths, self.samples.manifest.hidden_size) if self.order.attention_cost else None
            plan = plan_epoch(
                lengths,
                self.order.token_budget,
                self.world_size,
                seed=self.order.seed,
                epoch=self.epoch,
                window=self.order.window,
                costs=costs,
            )
            self._plan = (self.epoch, plan)
        return self._plan[1]

    def set_epoch(self, epoch: int) -> None:
        """Start the next pass at the beginning of `epoch`, also in DataLoader's workers, persistent or not. A pass in
        this process that ends does so by itself."""
        self._start(epoch, 0, 0)

    def __iter__(self) -> Iterator[Batch]:
        """This process's share of the rest of the epoch: in worker w of k every k-th batch from the w-th on."""
        return self.batches()

    def batches(self, executor: ThreadPoolExecutor | None = None) -> Iterator[Batch]:
        """As iteration; an executor reads the samples of a batch in parallel."""
        worker = get_worker_info()
        offset, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        if worker:
            self._follow(worker.id)
        plan = self.plan()
        while (step := self._first + offset + self._done * stride) < plan.num_steps:
            batch = self._reader.read(plan.batch(step, self.rank), executor)
            if worker:
                self._done += 1
            else:
                self._first += 1
            yield {**batch, "epoch": self.epoch, "step": step}
        if worker and worker.id == 0:
            self._shared.end()
        self.set_epoch(self.epoch + 1)

    def loader(self, prefetch: int = 2, threads: int = 1) -> BatchLoader:
        """Batches read ahead by a thread; see BatchLoader."""
        return BatchLoader(self, prefetch=prefetch, threads=threads)

    def state_dict(self, next_step: int | None = None) -> dict[str, Any]:
        """Where this pass stands. In the process that iterates, and in a worker (torchdata's StatefulDataLoader), it
        knows by itself; where another process or thread reads ahead, pass the number of batches the trainer has
        consumed this epoch: batch["step"] + 1."""
        return {
            "version": STATE_VERSION,
            "epoch": self.epoch,
            "first": self._first if next_step is None else next_step,
            "done": self._done if next_step is None else 0,
            **self._identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue there. Raises UsageError when something that decides the order of batches differs."""
        if state.get("version") != STATE_VERSION:
            raise UsageError(
                f"the loader state has version {state.get('version')}; this release reads {STATE_VERSION}; start the "
                "epoch anew with set_epoch"
            )
        for name, ours in self._identity().items():
            if state.get(name) != ours:
                raise UsageError(_refusal(name, state.get(name), ours))
        self._start(state["epoch"], state["first"], state["done"])

    def _start(self, epoch: int, first: int, done: int) -> None:
        self.epoch, self._first, self._done = epoch, first, done
        self._begun = None
        if get_worker_info() is None:  # where each batch is one step
            self._first, self._done = first + done, 0
            self._turn = self._shared.set(epoch, self._first).turn

    def _follow(self, worker: int) -> None:
        """In a worker: start where the process that owns the data set last said."""
        start = self._shared.get()
        if start.turn != self._turn:
            self._turn = start.turn
            self._start(start.epoch, start.first, 0)
        elif self._begun is not None:  # left early: what was read ahead of the trainer is lost, so begin again
            self._start(*self._begun)
        elif start.ended and start.epoch == self.epoch and worker == 0:
            warnings.warn(
                f"epoch {self.epoch} is read once more: DataLoader's workers don't advance it; call "
                "set_epoch(number) on the data set before each pass",
                stacklevel=2,
            )
        self._begun = (self.epoch, self._first, self._done)

    def _identity(self) -> dict[str, Any]:
        return {
            "world_size": self.world_size,
            "samples": len(self.samples),
            "samples_digest": self.samples.digest,
            "token_budget": self.order.token_budget,
            "seed": self.order.seed,
            "window": self.order.window,
            "attention_cost": self.order.attention_cost,
        }


def _refusal(name: str, saved: object, ours: object) -> str:
    advice = {
        "world_size": f"resume on {saved} ranks",
        "samples": "the stores have changed: pass the old ids as sample_ids",
        "samples_digest": "the stores have changed: pass the old ids as sample_ids",
    }.get(name, f"pass {name}={saved!r}")
    return (
        f"the loader state was saved with {name} {saved!r}, this loader has {ours!r}; batches are packed and shared by "
        f"it, so continuing would repeat some samples and leave others out; {advice}, or start an epoch anew with "
        "set_epoch"
    )
