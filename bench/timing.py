"""Timing that survives a shared machine: variants take turns, medians are compared, working sets leave the caches.

A ratio is only worth something between variants that ran side by side: one call to `side_by_side` times all of them
round after round, so that whatever else the machine does hits each alike.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Seconds = dict[str, list[float]]

# Assumed where the system does not tell: the last-level cache of a large server socket.
_CACHE_BYTES = 128 << 20


def side_by_side(
    variants: Mapping[str, Callable[[], object]],
    rounds: int = 15,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Seconds:
    """Seconds of each call of each variant, `rounds` each, taken in turn; the order rotates from round to round.

    `clock` may be time.thread_time for variants that only compute, on one thread: on a machine with more work than
    cores it leaves out the time in which others ran.
    """
    names = list(variants)
    for _, name in itertools.product(range(warmup), names):
        variants[name]()
    seconds: Seconds = {name: [] for name in names}
    for turn in range(rounds):
        start = turn % len(names)
        for name in (*names[start:], *names[:start]):
            started = clock()
            variants[name]()
            seconds[name].append(clock() - started)
    return seconds


def medians(seconds: Seconds) -> dict[str, float]:
    return {name: statistics.median(times) for name, times in seconds.items()}


def spread(times: Sequence[float]) -> float:
    """Distance between the quartiles as a share of the median."""
    if len(times) < 2:
        return 0.0
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / statistics.median(times)


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


def report(benchmark: Any, seconds: Seconds, baseline: str, title: str, gigabytes: float | None = None) -> str:
    """The table of one comparison, also put into pytest-benchmark's `extra_info`. `gigabytes` adds a rate column."""
    middle = medians(seconds)
    lines = [
        f"\n{title}",
        f"{'variant':<34}{'median ms':>11}{'spread':>8}{'ratio':>8}" + ("" if gigabytes is None else f"{'GB/s':>8}"),
    ]
    for name, median in middle.items():
        ratio = median / middle[baseline]
        benchmark.extra_info[name] = {"median_ms": round(median * 1e3, 3), "ratio": round(ratio, 3)}
        rate = "" if gigabytes is None else f"{gigabytes / median:8.1f}"
        lines.append(f"{name:<34}{median * 1e3:11.2f}{spread(seconds[name]):8.0%}{ratio:8.2f}{rate}")
    lines.append(f"ratio: to {baseline!r}; {len(seconds[baseline])} rounds in turn; spread: quartile distance / median")
    return "\n".join(lines)
