"""A replica's leases on their way from Ray's threads to the engine's."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence

from extractor.samples import Sample


class Inbox:
    """One thread consumes, others deliver. `changed` is notified at every change, for a reporter to wait on."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._leases: deque[Sequence[Sample]] = deque()
        self._nothing_more = False
        self._stopped = False

    @property
    def hungry(self) -> bool:
        """No lease is waiting, and nobody said that there is none. The lease being worked on does not count, so that
        the next one is there before the engine runs dry."""
        return not (self._leases or self._nothing_more or self._stopped)

    @property
    def idle(self) -> bool:
        """No lease is waiting, and the stream of samples has ended or ends next."""
        return self._nothing_more and not self._leases

    @property
    def stopped(self) -> bool:
        return self._stopped

    def add(self, lease: Sequence[Sample]) -> None:
        with self.changed:
            self._leases.append(lease)
            self._nothing_more = False
            self.changed.notify_all()

    def nothing_more(self) -> None:
        """For now: the stream of samples ends, so that the engine finishes and seals what it holds."""
        with self.changed:
            self._nothing_more = True
            self.changed.notify_all()

    def stop(self) -> None:
        """For good: leases not begun are dropped."""
        with self.changed:
            self._stopped = True
            self.changed.notify_all()

    def wait(self) -> bool:
        """Block until there is a lease (True) or a stop (False)."""
        with self.changed:
            self.changed.wait_for(lambda: self._leases or self._stopped)
            return not self._stopped

    def samples(self) -> Iterator[Sample]:
        """All samples of all leases until a stop or `nothing_more`; waits where the next lease is late."""
        while (lease := self._next()) is not None:
            yield from lease

    def _next(self) -> Sequence[Sample] | None:
        with self.changed:
            self.changed.wait_for(lambda: self._leases or self._nothing_more or self._stopped)
            if self._stopped or not self._leases:
                return None
            lease = self._leases.popleft()
            self.changed.notify_all()
            return lease
