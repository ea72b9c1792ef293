"""Where the next pass over a data set starts, told to DataLoader's workers, which may outlive a pass."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Start(NamedTuple):
    """`turn` counts how often a start was set; `ended`: whether worker 0 has handed out all of that pass."""

    epoch: int
    first: int
    turn: int
    ended: int


class SharedStart:
    """Written between passes by the process that owns the data set, and read by its workers when a pass begins. A fork
    shares it, and so does torch's pickling into a process that it starts; any other copy stands for itself."""

    def __init__(self) -> None:
        self._cells = _shared(torch.zeros(len(Start._fields), dtype=torch.int64))

    def __setstate__(self, state: dict[str, torch.Tensor]) -> None:
        self._cells = _shared(state["_cells"])  # a plain copy has left shared memory

    def get(self) -> Start:
        return Start(*self._cells.tolist())

    def set(self, epoch: int, first: int) -> Start:
        start = Start(epoch, first, self.get().turn + 1, 0)
        self._cells.copy_(torch.tensor(start))
        return start

    def end(self) -> None:
        """By worker 0 alone, which is also the one that asks."""
        self._cells[Start._fields.index("ended")] = 1


def _shared(cells: torch.Tensor) -> torch.Tensor:
    cells.share_memory_()  # type: ignore[no-untyped-call]
    return cells
