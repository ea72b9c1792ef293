"""`BatchLoader`: a thread reads ahead while the trainer computes.

A thread, not a process: reading is `preadv`, which releases the GIL, and what a process reads is copied once more.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from extractor.errors import UsageError
from extractor.loader.batch import Batch

if TYPE_CHECKING:
    from extractor.loader.dataset import HiddenStateDataset

_END = object()


class BatchLoader:
    """One pass per `iter`: the rest of the data set's current epoch. `skipped` lists damaged samples met so far.

    Its state counts the batches that were delivered, not those read ahead, so a resumed run continues exactly.
    """

    def __init__(self, data: HiddenStateDataset, *, prefetch: int = 2, threads: int = 1) -> None:
        """prefetch: batches ready beside the one in use.  threads: samples read at the same time."""
        if prefetch < 1 or threads < 1:
            raise UsageError(f"prefetch is {prefetch} and threads {threads}; each must be at least 1; raise them")
        self.data = data
        self.skipped: list[str] = []
        self._prefetch, self._threads = prefetch, threads
        self._state = data.state_dict()

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Batch]:
        """Errors of the reading thread are raised here, in the trainer's thread."""
        self.data.load_state_dict(self._state)
        ready: queue.Queue[Any] = queue.Queue(self._prefetch)
        stop = threading.Event()
        thread = threading.Thread(target=self._read_ahead, args=(ready, stop), name="hidden-states", daemon=True)
        thread.start()
        try:
            while (item := ready.get()) is not _END:
                if isinstance(item, BaseException):
                    raise item
                self._state = self.data.state_dict(item["step"] + 1) | {"epoch": item["epoch"]}
                self.skipped += item["skipped"]
                yield item
            self._state = self.data.state_dict()
        finally:
            stop.set()
            while thread.is_alive():
                _drain(ready)
                thread.join(0.01)

    def set_epoch(self, epoch: int) -> None:
        """Start the next pass at the beginning of `epoch`; without this, passes continue where the last one stopped."""
        self.data.set_epoch(epoch)
        self._state = self.data.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer stands: after the batch delivered last."""
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue there with the next `iter`. Raises UsageError as HiddenStateDataset.load_state_dict does."""
        self.data.load_state_dict(state)
        self._state = self.data.state_dict()

    def _read_ahead(self, ready: queue.Queue[Any], stop: threading.Event) -> None:
        try:
            with ThreadPoolExecutor(self._threads, "hidden-states") as executor:
                for batch in self.data.batches(executor if self._threads > 1 else None):
                    ready.put(batch)
                    if stop.is_set():
                        return
            ready.put(_END)
        except BaseException as error:  # noqa: BLE001 - handed to the trainer's thread
            ready.put(error)


def _drain(ready: queue.Queue[Any]) -> None:
    while True:
        try:
            ready.get_nowait()
        except queue.Empty:
            return
