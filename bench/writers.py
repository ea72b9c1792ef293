"""How much faster are several writers of one store than one?

    pytest bench/writers.py -s

One process and one shard a writer, as with tensor parallelism; all together write the same samples, of Kimi-K2.5's
shape, through gather, ring and store. A round begins when all have opened their sessions and ends when the last is
durable. Crews that would need more than half of the free memory are not tried.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from crew import Crew, Orders
from settings import size
from store_data import LAYERS
from synthetic import Load, Run, make_steps
from timing import Variant, compare
from torch import Tensor

from extractor import sizes

LOAD = Load(samples=size(8, toy=2), tokens=size(1536, toy=96), step_rows=size(1536, toy=64))
WRITERS = size((1, 2, 4, 8), toy=(1, 2))
RING_BYTES = size(6 * (64 << 20), toy=32 << 20)
PROCESS_BYTES = 128 << 20


def crew(count: int, folder: Path, steps: list[list[Tensor]]) -> Crew:
    def make(rank: int) -> Orders:
        run = Run(folder, LOAD.share(count), steps, rank=rank)
        return {
            "prepare": run.prepare if rank == 0 else lambda: None,
            "open": run.open,
            "write": run.write,
            "release": run.release,
        }

    return Crew(count, make)


def together(members: Crew) -> Variant:
    def before() -> None:
        members.tell("prepare")
        os.sync()
        members.tell("open")

    return Variant(lambda: members.tell("write"), before=before, after=lambda: members.tell("release"))


def need_bytes(writers: Sequence[int]) -> int:
    """Rings of the largest crew, while it works; of all crews the processes, and what their allocators keep of tiles
    and commits (up to twice what they wrote)."""
    return max(writers) * RING_BYTES + sum(writers) * PROCESS_BYTES + 2 * len(writers) * LOAD.nbytes


def affordable(writers: Sequence[int]) -> list[int]:
    half = psutil.virtual_memory().available // 2
    return [count for number, count in enumerate(writers) if need_bytes(writers[: number + 1]) <= half]


def test_writers(benchmark, place):
    kind, folder = place
    counts = affordable(WRITERS)
    if not counts:
        pytest.skip(f"one writer needs {sizes.size(need_bytes([1]))}, and half of the free memory is less")
    absent = [count for count in WRITERS if count not in counts]
    steps = make_steps(LOAD)
    with ExitStack() as stack:
        crews = {count: stack.enter_context(crew(count, folder / str(count), steps)) for count in counts}
        variants = {f"{count} writer{'s' if count > 1 else ''}": together(members) for count, members in crews.items()}
        title = f"writers on {kind}: {LOAD.samples} samples of {LOAD.tokens:,} x {LAYERS} x 7168 in all"
        remark = f"Not measured for want of memory: {absent} writers." if absent else ""
        work = LOAD.samples * LOAD.tokens
        compare(benchmark, title, variants, rounds=3, work=work, rate_unit="tokens/s", remark=remark)
