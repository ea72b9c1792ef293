"""Host memory: exact sizes, every slot pinned once, and refusals that say what to do."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from extractor import pinned
from extractor.errors import EngineError, UsageError
from extractor.pinned import CudaDriver, HostMemory, cpus_near

PAGE = mmap.PAGESIZE


class FakeDriver:
    """Remembers what is pinned; refuses the n-th registration."""

    def __init__(self, refuse_at: int | None = None) -> None:
        self.pinned: dict[int, int] = {}
        self.registrations = 0
        self._refuse_at = refuse_at

    def register(self, address: int, nbytes: int) -> int:
        self.registrations += 1
        if self.registrations - 1 == self._refuse_at:
            return 2
        self.pinned[address] = nbytes
        return 0

    def unregister(self, address: int) -> int:
        del self.pinned[address]
        return 0

    def describe(self, code: int) -> str:
        return f"out of memory (CUresult {code})"


def test_each_slot_is_pinned_once_at_its_exact_size() -> None:
    driver = FakeDriver()
    memory = HostMemory(3 * PAGE, 5, driver)
    assert driver.pinned == {buffer.data_ptr(): 3 * PAGE for buffer in memory.buffers}
    assert len(driver.pinned) == 5
    starts = sorted(driver.pinned)
    assert all(start % PAGE == 0 for start in starts)
    assert [b - a for a, b in zip(starts, starts[1:], strict=False)] == [3 * PAGE] * 4  # no rounding to powers of two
    memory.close()
    memory.close()
    assert driver.pinned == {}


def test_slots_are_writable_and_apart() -> None:
    memory = HostMemory(PAGE, 3)
    for value, buffer in enumerate(memory.buffers):
        buffer.fill_(value + 1)
    assert [set(buffer.tolist()) for buffer in memory.buffers] == [{1}, {2}, {3}]


def test_a_refused_registration_undoes_the_others_and_says_what_to_do() -> None:
    driver = FakeDriver(refuse_at=2)
    with pytest.raises(EngineError, match=r"slot 2 of 4 .*out of memory \(CUresult 2\).*locked memory is .*ulimit -l"):
        HostMemory(PAGE, 4, driver)
    assert driver.pinned == {}


def test_a_slot_too_large_for_one_registration_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(pinned, "MAX_REGISTRATION_BYTES", PAGE)
    driver = FakeDriver()
    with pytest.raises(UsageError, match="slot_rows"):
        HostMemory(2 * PAGE, 1, driver)
    assert driver.registrations == 0
    HostMemory(2 * PAGE, 1)  # ordinary memory has no such limit


def test_more_memory_than_there_is_is_refused_before_it_is_touched() -> None:
    with pytest.raises(EngineError, match="needs 1,125,899,906,842,624 bytes.*fewer or smaller slots"):
        HostMemory(1 << 40, 1 << 10)


def test_the_bound_of_a_container_counts(monkeypatch) -> None:
    monkeypatch.setattr(pinned, "_memory_bounds", lambda: iter([("MemAvailable", 1 << 50), ("memory.max", PAGE)]))
    with pytest.raises(EngineError, match="memory.max allows 4,096"):
        HostMemory(PAGE, 2)


def test_touching_near_a_device_leaves_the_callers_processors_alone(monkeypatch) -> None:
    """Threads that touch are bound; the engine's thread, which asks for the memory, is not."""
    before = os.sched_getaffinity(0)
    bound: list[tuple[threading.Thread, set[int]]] = []

    def bind(thread: int, cpus: set[int], really=os.sched_setaffinity) -> None:
        really(thread, cpus)
        bound.append((threading.current_thread(), os.sched_getaffinity(0)))

    monkeypatch.setattr(os, "sched_setaffinity", bind)
    near = {min(before)}
    HostMemory(PAGE, 20, cpus=near)
    assert bound
    assert all(cpus == near and thread is not threading.main_thread() for thread, cpus in bound)
    assert os.sched_getaffinity(0) == before


def test_pages_are_present_after_construction() -> None:
    """Untouched pages of a mapping are not resident; ours must be, or the first steps pay for them."""
    memory = HostMemory(64 * PAGE, 3)
    assert resident_pages(memory) == 192


def resident_pages(memory: HostMemory) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    pages = sum(buffer.nbytes for buffer in memory.buffers) // PAGE
    present = (ctypes.c_ubyte * pages)()
    start = memory.buffers[0].data_ptr()
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(pages * PAGE), present) == 0
    return sum(byte & 1 for byte in present)


@pytest.mark.parametrize(
    ("node", "expected"), [("1", {0}), ("0", set()), ("-1", set())], ids=["ours", "of others", "machine without nodes"]
)
def test_processors_near_a_device(tmp_path: Path, monkeypatch, node: str, expected: set[int]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    device = tmp_path / "bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{node}\n")
    for number, cpus in enumerate(["2-3,8-9\n", "0,4-7\n"]):
        (tmp_path / f"devices/system/node/node{number}").mkdir(parents=True)
        (tmp_path / f"devices/system/node/node{number}/cpulist").write_text(cpus)
    assert cpus_near("0000:3B:00.0", tmp_path) == expected
    assert cpus_near("0000:FF:00.0", tmp_path) == set()


DRIVER_STUB = r"""
#include <stddef.h>
#include <string.h>
typedef unsigned long long u64;
u64 seen[4], enqueued[4];
static int enqueue(u64 a, u64 b, u64 c, u64 d)
{ enqueued[0] = a; enqueued[1] = b; enqueued[2] = c; enqueued[3] = d; return d == 0xbad ? 2 : 0; }
int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t bytes, void *stream)
{ return enqueue(to, (u64)from, bytes, (u64)stream); }
int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t bytes, void *stream)
{ return enqueue((u64)to, from, bytes, (u64)stream); }
int cuMemsetD8Async(u64 at, unsigned char value, size_t bytes, void *stream)
{ return enqueue(at, value, bytes, (u64)stream); }
int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags)
{ seen[0] = (u64)p; seen[1] = bytes; seen[2] = flags; return bytes > 1ull << 40 ? 2 : 0; }
int cuMemHostUnregister(void *p) { seen[3] = (u64)p; return 0; }
int cuGetErrorString(int code, const char **text) { if (code != 2) return 1; *text = "out of memory"; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal + 40; return 0; }
int cuDeviceGetPCIBusId(char *text, int length, int device)
{ if (length < 13 || device != 43) return 1; strcpy(text, "0000:3B:00.0"); return 0; }
"""


@pytest.fixture(scope="module")
def driver_stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A libcuda that records what it is called with: addresses and sizes must cross ctypes whole."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "stub.c").write_text(DRIVER_STUB)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "stub.c"], check=True)
    return folder / "libcuda.so.1"


def test_what_a_step_enqueues_crosses_whole_and_is_checked(driver_stub: Path) -> None:
    driver = CudaDriver(str(driver_stub))
    enqueued = (ctypes.c_uint64 * 4).in_dll(ctypes.CDLL(str(driver_stub)), "enqueued")
    device, host, nbytes, stream = 0x7F12_3456_7800, 0x7FED_CBA9_8000, 5 << 30, 0x5555_DEAD_BEE0
    driver.copy_in(stream, device, host, nbytes)
    assert list(enqueued) == [device, host, nbytes, stream]
    driver.copy_out(stream, host, device, nbytes)
    assert list(enqueued) == [host, device, nbytes, stream]
    driver.clear(stream, device, nbytes)
    assert list(enqueued) == [device, 0, nbytes, stream]
    driver.copy_in(0, device, host, nbytes)  # the default stream
    assert list(enqueued) == [device, host, nbytes, 0]
    for call in (lambda: driver.copy_in(0xBAD, 1, 2, 3), lambda: driver.copy_out(0xBAD, 1, 2, 3)):
        with pytest.raises(EngineError, match=r"could not copy to the (device|host): out of memory \(CUresult 2\)"):
            call()
    with pytest.raises(EngineError, match="could not clear memory of the device"):
        driver.clear(0xBAD, 1, 2)


def test_the_drivers_calls_get_whole_addresses_and_sizes(driver_stub: Path) -> None:
    driver = CudaDriver(str(driver_stub))
    seen = (ctypes.c_uint64 * 4).in_dll(ctypes.CDLL(str(driver_stub)), "seen")
    address, nbytes = 0x7FED_CBA9_8000, 48 << 30
    assert driver.register(address, nbytes) == 0
    assert driver.unregister(address) == 0
    assert list(seen) == [address, nbytes, 1, address]
    assert driver.describe(driver.register(address, 1 << 41)) == "out of memory (CUresult 2)"
    assert driver.describe(77) == "unknown error (CUresult 77)"
    assert driver.pci_address(3) == "0000:3B:00.0"
    assert driver.pci_address(0) == ""
