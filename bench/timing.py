"""Timing that survives a shared machine: variants take turns, medians are compared, working sets leave the caches.

A ratio is only worth something between variants that ran side by side: one call to `side_by_side` times all of them
round after round, so that whatever else the machine does hits each alike.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from settings import size

from extractor.benchmarks.markdown import quantity, speed
from extractor.benchmarks.table import Table

T = TypeVar("T")
Seconds = dict[str, list[float]]

# Assumed where the system does not tell: the last-level cache of a large server socket.
_CACHE_BYTES = 128 << 20


def side_by_side(
    variants: Mapping[str, Callable[[], object]],
    rounds: int = 15,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    before: Mapping[str, Callable[[], object]] | None = None,
    after: Mapping[str, Callable[[], object]] | None = None,
) -> Seconds:
    """Seconds of each call of each variant, `rounds` each, taken in turn; the order rotates from round to round.

    `before` and `after` run around each call of their variant and are not timed. `clock` may be time.thread_time for
    variants that only compute, on one thread: on a machine with more work than cores it leaves out the time in which
    others ran.
    """
    names = list(variants)
    prepare, tidy = before or {}, after or {}
    for _, name in itertools.product(range(warmup), names):
        prepare.get(name, _nothing)()
        variants[name]()
        tidy.get(name, _nothing)()
    seconds: Seconds = {name: [] for name in names}
    for turn in range(rounds):
        start = turn % len(names)
        for name in (*names[start:], *names[:start]):
            prepare.get(name, _nothing)()
            started = clock()
            variants[name]()
            seconds[name].append(clock() - started)
            tidy.get(name, _nothing)()
    return seconds


def _nothing() -> None:
    pass


def cache_bytes() -> int:
    """The last-level cache that the system reports, or a large one."""
    try:
        return os.sysconf("SC_LEVEL3_CACHE_SIZE") or _CACHE_BYTES
    except (ValueError, OSError):
        return _CACHE_BYTES


def buffers_beyond_caches(buffer_bytes: int, at_most: int = 8) -> int:
    """How many buffers of this size hold twice the last-level cache: 2 to `at_most`."""
    return max(2, min(at_most, -(-2 * cache_bytes() // max(buffer_bytes, 1))))


def rotation(make: Callable[[], T], count: int) -> Iterator[T]:
    """`count` buffers in turn without end: none is warm in a cache when it comes round again."""
    return itertools.cycle([make() for _ in range(count)])


def warm_page_cache(folder: Path, nbytes: int) -> None:
    """Let the next `nbytes` of files in `folder` land on memory that the machine has at hand. On a virtual machine the
    host takes free pages back within seconds, and the next touch of one costs ten times the write into it: a variant
    would pay or not by what ran before it. A file is written and deleted before it reaches the disk."""
    piece = bytes(min(nbytes, 4 << 20))
    scratch = folder / "warm"
    with scratch.open("wb", buffering=0) as file:
        for _ in range(-(-nbytes // len(piece))):
            file.write(piece)
    scratch.unlink()


def pin_threads(count: int = 1) -> None:
    """Compute threads of torch and Numba in this process, where they are loaded. Numba first: its first call starts
    OpenMP anew, with all cores, for torch too."""
    if "numba" in sys.modules:
        sys.modules["numba"].set_num_threads(min(count, sys.modules["numba"].config.NUMBA_NUM_THREADS))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


@dataclass(frozen=True, slots=True)
class Variant:
    """`run` is timed, `before` and `after` run around each call of it and are not. `note`: what it leaves out or adds.
    `extra`: what else to say, asked for after the last round."""

    run: Callable[[], object]
    note: str = ""
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None
    extra: Callable[[], dict[str, Any]] = dict


def compare(
    benchmark: Any,
    title: str,
    variants: Mapping[str, Variant],
    *,
    rounds: int = 15,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    work: float | None = None,
    rate_unit: str = "",
    threads: int | None = 1,
    remark: str = "",
) -> Table:
    """Time the variants in turn and keep the table for `extractor bench`; the first one is the baseline.

    `work` / seconds is the rate in `rate_unit`. `threads`: compute threads; None leaves them to the variants.
    """
    if threads is not None:
        pin_threads(threads)
    rounds, warmup = size((rounds, warmup), toy=(1, 0))
    calls = {name: variant.run for name, variant in variants.items()}
    before = {name: variant.before for name, variant in variants.items()}
    after = {name: variant.after for name, variant in variants.items()}
    seconds = benchmark.pedantic(lambda: side_by_side(calls, rounds, warmup, clock, before, after), rounds=1)
    table = Table.of_rounds(
        title,
        seconds,
        baseline=next(iter(variants)),
        work=work,
        rate_unit=rate_unit,
        notes={name: variant.note for name, variant in variants.items()},
        extra={name: variant.extra() for name, variant in variants.items()},
        remark=remark,
    )
    keep(benchmark, table)
    return table


def keep(benchmark: Any, table: Table) -> None:
    """Put a table where `extractor bench` finds it, and print it for `pytest -s`."""
    benchmark.extra_info.setdefault("tables", []).append(asdict(table))
    print(f"\n{table.title}")
    for row in table.rows:
        rate = "" if row.rate is None else f"{row.rate:>12,.2f} {table.rate_unit}"
        print(f"{row.variant:<40}{quantity(row.value, table.unit):>30} {speed(row.speed):>22}{rate}  {row.extra or ''}")
