"""How rows get from the engine's layer tensors into a host slot: one class for the CPU, one for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from extractor import ops
from extractor.errors import UsageError
from extractor.implementations import BoundGather
from extractor.pinned import CudaDriver, HostMemory, cpus_near
from extractor.slot import HostSlot, Slot, SlotLayout
from extractor.streams import CudaStreams, Streams


class Transfer(Protocol):
    """Fills host slots: write a slot's index, call `gather`, then leave the slot alone until it is `ready`.

    `begin` comes first on the thread that asks `ready`.
    """

    slots: list[HostSlot]

    def begin(self) -> None: ...
    def gather(self, slot: int, layers: Sequence[Tensor], rows: int, chunks: int) -> None: ...
    def ready(self, slot: int) -> bool: ...
    def fence(self) -> Callable[[], bool]: ...
    def close(self) -> None: ...


class HostTransfer:
    """The CPU's: the kernel writes the host slot itself, and has finished when `gather` returns."""

    def __init__(self, layout: SlotLayout, memory: HostMemory) -> None:
        self._memory = memory
        self.slots = [HostSlot(layout, buffer) for buffer in memory.buffers]
        self._gathers = [_Gather(slot) for slot in self.slots]

    def gather(self, slot: int, layers: Sequence[Tensor], rows: int, chunks: int) -> None:
        self._clear(slot, chunks)
        self._gathers[slot](layers, rows)

    def _clear(self, slot: int, chunks: int) -> None:
        counts = self.slots[slot].counts_array
        counts[len(counts) - chunks :] = 0

    def begin(self) -> None:
        pass

    def ready(self, slot: int) -> bool:
        return True

    def fence(self) -> Callable[[], bool]:
        return lambda: True

    def close(self) -> None:
        self._memory.close()


class _Gather:
    """The gather into one slot. Bound at the first step, whose layers show the dtype that all have."""

    def __init__(self, into: Slot) -> None:
        self._into = into
        self._bound: BoundGather | None = None

    def __call__(self, layers: Sequence[Tensor], rows: int) -> None:
        if self._bound is None:
            into = self._into
            self._bound = ops.bind_gather(layers, into.index[0], into.states, into.counts, owners=into.index[1])
        self._bound(layers, rows)


class _Staging:
    """A device buffer, what gathers into it, and the event of the last copy out of it."""

    def __init__(self, layout: SlotLayout, device: torch.device, copied: Any) -> None:
        buffer = torch.empty(layout.nbytes, dtype=torch.uint8, device=device)
        self.start = buffer.data_ptr()
        self.gather = _Gather(Slot(layout, buffer))
        self.copied = copied


class DeviceTransfer:
    """A GPU's: gather into a staging buffer on the engine's stream, then one copy into the host slot on the other.

    Everything is enqueued, nothing waits. Four orders are kept, and each has a test that breaks it:
    forward before gather, and gather before the next forward reuses the layer tensors: same stream;
    gather before copy: `gathered`;  copy before the next gather into the same staging buffer: `copied`;
    copy (hence also the read of the slot's index) before the slot is written out and reused: `ready` asks `copied`.
    """

    def __init__(self, layout: SlotLayout, memory: HostMemory, streams: Streams, device: torch.device) -> None:
        self._layout = layout
        self._memory = memory
        self._streams = streams
        self.slots = [HostSlot(layout, buffer) for buffer in memory.buffers]
        self._starts = [buffer.data_ptr() for buffer in memory.buffers]
        self._used: list[Any] = []  # streams that may read or write the slots
        self._copied = [streams.event() for _ in self.slots]
        self._gathered = [streams.event() for _ in self.slots]
        # Half of the slots are one step's (`Job.num_slots`). With fewer buffers a step's last gathers, and so the next
        # forward pass, would wait for its first copies, 1.2 ms each.
        num_staging = max(1, len(self.slots) // 2)
        self._staging = [_Staging(layout, device, streams.event()) for _ in range(num_staging)]

    def gather(self, slot: int, layers: Sequence[Tensor], rows: int, chunks: int) -> None:
        with self._streams.device:
            engine, copies = self._streams.engine(), self._streams.copies
            self._used = [engine, copies]
            staging = self._next_staging()
            engine.wait_event(staging.copied)
            self._fill(engine, staging, self._starts[slot], chunks)
            self._streams.gather(engine, lambda: staging.gather(layers, rows))
            self._gathered[slot].record(engine)
            copies.wait_event(self._gathered[slot])
            used = self._layout.used(rows, chunks)
            nbytes = used.stop - used.start
            self._streams.copy_out(copies, self._starts[slot] + used.start, staging.start + used.start, nbytes)
            self._copied[slot].record(copies)
            staging.copied = self._copied[slot]

    def _fill(self, engine: Any, staging: _Staging, host: int, chunks: int) -> None:
        """What the gather into `staging` needs: the index of the slot that starts at `host`, and counts of zero."""
        index, counts = self._layout.index_start, self._layout.counts_bytes(chunks)
        self._streams.copy_in(engine, staging.start + index, host + index, self._layout.index_bytes)
        self._streams.clear(engine, staging.start + self._layout.states_start - counts, counts)

    def begin(self) -> None:
        self._streams.begin()

    def ready(self, slot: int) -> bool:
        return bool(self._copied[slot].query())

    def fence(self) -> Callable[[], bool]:
        """Tells whether the device has done everything enqueued so far, also for a slot that was never published."""
        events = [self._streams.event() for _ in self._used]
        for event, stream in zip(events, self._used, strict=True):
            event.record(stream)
        return lambda: all(event.query() for event in events)

    def close(self) -> None:
        self._memory.close()

    def _next_staging(self) -> _Staging:
        self._staging.append(self._staging.pop(0))
        return self._staging[-1]


def open_transfer(layout: SlotLayout, num_slots: int, device: torch.device) -> Transfer:
    """Allocate (and on a GPU pin) the slots. Raises UsageError for other devices, EngineError where memory is short."""
    if device.type == "cpu":
        return HostTransfer(layout, HostMemory(layout.nbytes, num_slots))
    if device.type != "cuda":
        raise UsageError(f"capture on device {device}; cpu and cuda are supported")
    with torch.cuda.device(device):  # the driver pins for the current device's context
        device = torch.device("cuda", torch.cuda.current_device())
        torch.cuda.synchronize()  # gives a thread that has not used the device yet its context; a guard does not
        driver = CudaDriver()
        near = cpus_near(driver.pci_address(device.index))
        memory = HostMemory(layout.nbytes, num_slots, driver, near)
        return DeviceTransfer(layout, memory, CudaStreams(device, driver, near), device)
