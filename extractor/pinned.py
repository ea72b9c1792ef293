"""Host memory for the ring's slots: mapped, touched and, for a GPU, pinned, once and at its exact size.

Why not torch's pinned allocator: it rounds each block up to a power of two (20.4 GiB became 32 GiB in a public report).
Why a shared mapping: a private one is copied on write after a fork, while the device writes on into the old pages.
Why an anonymous one: no name that a killed process leaks, and not bounded by /dev/shm (64 MB in a container).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from extractor.errors import EngineError, UsageError

# One registration of 512 GiB or more fails (seen on an H200 NVL); 64 GiB leaves room.
MAX_REGISTRATION_BYTES = 64 << 30
# 8 GiB on an H100 host: 1.1 s touched by 8 threads, 2.8 s by one.
TOUCH_THREADS = 8
_SUCCESS = 0
_PORTABLE = 1


class Driver(Protocol):
    """The calls of the CUDA driver that pin memory. They return 0 or an error code."""

    def register(self, address: int, nbytes: int) -> int: ...
    def unregister(self, address: int) -> int: ...
    def describe(self, code: int) -> str: ...


class CudaDriver:
    """libcuda itself: a failed cudaHostRegister would leave an error that surfaces in a later, innocent call.

    What a step calls only enqueues, in a few microseconds, and keeps the interpreter's lock meanwhile: a thread that
    took it could hold the engine's up for milliseconds.
    """

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self._cuda = ctypes.CDLL(library)
        address, size, stream = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
        brief = ctypes.PyDLL(library)
        self._copy_in, self._copy_out = brief.cuMemcpyHtoDAsync_v2, brief.cuMemcpyDtoHAsync_v2
        self._copy_in.argtypes = self._copy_out.argtypes = (address, address, size, stream)
        self._clear = brief.cuMemsetD8Async
        self._clear.argtypes = (address, ctypes.c_ubyte, size, stream)

    def copy_in(self, stream: int, to: int, source: int, nbytes: int) -> None:
        """Enqueue a copy from pinned memory to the device. Raises EngineError with what the driver says."""
        self._check(self._copy_in(to, source, nbytes, stream), "copy to the device")

    def copy_out(self, stream: int, to: int, source: int, nbytes: int) -> None:
        """Enqueue a copy from the device to pinned memory."""
        self._check(self._copy_out(to, source, nbytes, stream), "copy to the host")

    def clear(self, stream: int, at: int, nbytes: int) -> None:
        """Enqueue zeros on the device."""
        self._check(self._clear(at, 0, nbytes, stream), "clear memory of the device")

    def _check(self, code: int, what: str) -> None:
        if code != _SUCCESS:
            raise EngineError(
                f"the CUDA driver could not {what}: {self.describe(code)}; it may report what an earlier kernel did: "
                "run again with CUDA_LAUNCH_BLOCKING=1 to see where"
            )

    def register(self, address: int, nbytes: int) -> int:
        return int(self._cuda.cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), _PORTABLE))

    def unregister(self, address: int) -> int:
        return int(self._cuda.cuMemHostUnregister(ctypes.c_void_p(address)))

    def pci_address(self, ordinal: int) -> str:
        """Such as 0000:3B:00.0; empty if the driver won't tell."""
        device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
        self._cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        self._cuda.cuDeviceGetPCIBusId(text, len(text), device)
        return text.value.decode()

    def describe(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorString(code, ctypes.byref(text))
        return f"{(text.value or b'unknown error').decode()} (CUresult {code})"


class HostMemory:
    """`num_slots` slots of `slot_bytes` (a multiple of the page size), each its own registration.

    One registration per slot, because a copy that crosses from one registration into the next is refused.

    buffers: uint8 tensors [slot_bytes]
    driver: None for ordinary memory
    cpus: the pages are placed on the NUMA node of these processors (see `cpus_near`); empty: wherever the kernel likes
    """

    def __init__(
        self, slot_bytes: int, num_slots: int, driver: Driver | None = None, cpus: Set[int] = frozenset()
    ) -> None:
        _require_memory(slot_bytes * num_slots)
        mapping = np.frombuffer(mmap.mmap(-1, slot_bytes * num_slots), dtype=np.uint8)
        _touch(mapping, cpus)
        self.buffers = [torch.from_numpy(piece) for piece in mapping.reshape(num_slots, slot_bytes)]
        self._driver = driver
        self._registered: list[int] = []
        try:
            self._register()
        except BaseException:
            self.close()
            raise

    def _register(self) -> None:
        if self._driver is None:
            return
        if self.buffers[0].nbytes > MAX_REGISTRATION_BYTES:
            raise UsageError(
                f"a slot of {self.buffers[0].nbytes:,} bytes is too large to pin; at most {MAX_REGISTRATION_BYTES:,} "
                "are allowed; use a smaller slot_rows"
            )
        for slot in self.buffers:
            code = self._driver.register(slot.data_ptr(), slot.nbytes)
            if code != _SUCCESS:
                raise EngineError(self._refusal(slot.nbytes, self._driver.describe(code)))
            self._registered.append(slot.data_ptr())

    def _refusal(self, slot_bytes: int, reason: str) -> str:
        locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        limit = "unlimited" if locked == resource.RLIM_INFINITY else f"{locked:,} bytes"
        return (
            f"the CUDA driver refused to pin slot {len(self._registered)} of {len(self.buffers)} "
            f"({slot_bytes:,} bytes each): {reason}; the limit on locked memory is {limit}; raise it "
            "(`ulimit -l unlimited`, in a container `--ulimit memlock=-1`), or use fewer or smaller slots"
        )

    def close(self) -> None:
        """Unregister. Only when no copy is in flight. The mapping itself goes with its last view."""
        while self._registered:
            assert self._driver is not None
            self._driver.unregister(self._registered.pop())


def cpus_near(pci_address: str, sysfs: Path = Path("/sys")) -> frozenset[int]:
    """The processors on a device's NUMA node that this process may use; empty where the machine does not tell."""
    return _node_cpus(pci_address.lower(), sysfs) & os.sched_getaffinity(0)


def _node_cpus(pci_address: str, sysfs: Path) -> frozenset[int]:
    try:
        node = int((sysfs / "bus/pci/devices" / pci_address / "numa_node").read_text())
        return frozenset(_parse_cpulist((sysfs / f"devices/system/node/node{node}/cpulist").read_text()))
    except (OSError, ValueError):  # no such device in this container, or node -1: a machine with one node
        return frozenset()


def _parse_cpulist(text: str) -> Iterator[int]:
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _touch(mapping: np.ndarray, cpus: Set[int]) -> None:
    """Fault every page in now, not in a step; a page lands on the NUMA node of the thread that touches it first."""

    def bind() -> None:
        if cpus:
            os.sched_setaffinity(0, cpus)  # of this thread only

    def fill(piece: np.ndarray) -> None:
        piece[:: mmap.PAGESIZE] = 0

    pages = -(-mapping.size // mmap.PAGESIZE)
    step = -(-pages // TOUCH_THREADS) * mmap.PAGESIZE
    with ThreadPoolExecutor(TOUCH_THREADS, initializer=bind) as pool:
        list(pool.map(fill, (mapping[start : start + step] for start in range(0, mapping.size, step))))


def _require_memory(nbytes: int) -> None:
    """Refuse before touching: the kernel would kill the process instead of failing a call."""
    for source, available in _memory_bounds():
        if nbytes > available:
            raise EngineError(
                f"the capture ring needs {nbytes:,} bytes of host memory, but {source} allows {available:,}; "
                "use fewer or smaller slots, or give the process more memory"
            )


def _memory_bounds() -> Iterator[tuple[str, int]]:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        yield "MemAvailable in /proc/meminfo", int(lines["MemAvailable"].split()[0]) * 1024
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        yield str(limit), int(text)
