"""Several writers of one store, each a process as a tensor-parallel rank is one, told to work at the same time."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from types import TracebackType

_PR_SET_PDEATHSIG = 1
_STOP = "stop"

Orders = Mapping[str, Callable[[], object]]


class Crew:
    """`make(rank)` is called in each process and returns what it can be told to do. Forked, so that all share the
    synthetic layers."""

    def __init__(self, count: int, make: Callable[[int], Orders]) -> None:
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._members = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            member = context.Process(target=_serve, args=(theirs, make, rank), daemon=True)
            member.start()
            theirs.close()
            self._pipes.append(ours)
            self._members.append(member)

    def tell(self, order: str) -> None:
        """Returns when all are done. Raises RuntimeError with what a member failed with."""
        for pipe in self._pipes:
            pipe.send(order)
        problems = [answer for pipe in self._pipes if (answer := pipe.recv())]
        if problems:
            raise RuntimeError(f"{len(problems)} of {len(self._pipes)} writers failed: {problems[0]}")

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:  # closing would not do: later members have inherited this end
            pipe.send(_STOP)
        for member in self._members:
            member.join(10)
            member.kill()


def _serve(pipe: Connection, make: Callable[[int], Orders], rank: int) -> None:
    # A killed benchmark must not leave writers behind, which hold a ring of host memory each.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    orders = make(rank)
    while True:
        order = pipe.recv()
        if order == _STOP:
            return
        try:
            orders[order]()
            pipe.send("")
        except Exception as error:
            pipe.send(repr(error))
