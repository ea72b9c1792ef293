"""Which engine speed can this machine's disk follow, with gather, ring and store at full speed and no model?

    pytest bench/pipeline.py -s

Rows of Kimi-K2.5's shape, 43,008 bytes a token, with the defaults of `extract`: detectors on, checksums, durable at the
end. A round begins with an empty store and an open session (allocated once a run) and ends after the last fsync.
On disk the ceiling is one sequential write of the same bytes with one fsync; on tmpfs, where no disk limits, it is a
memcpy into memory that was touched before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import pytest
from crew import Crew, Orders
from settings import DISK, MEMORY, TOY, size
from store_data import LAYERS, ROW_BYTES, states, write_raw
from synthetic import Load, Run, make_steps
from timing import Variant, compare

LOAD = Load(samples=size(8, toy=2), tokens=size(3072, toy=96), step_rows=size(2048, toy=64))
WRITERS = size((1, 2, 4, 8), toy=(1, 2))
TOKENS = LOAD.samples * LOAD.tokens
SHAPE = f"{LOAD.samples} samples of {LOAD.tokens:,} x {LAYERS} x 7168, {LOAD.nbytes / 1e6:,.0f} MB"


@pytest.fixture(params=["disk", "tmpfs"])
def place(request) -> Iterator[tuple[str, Path]]:
    parent = DISK if request.param == "disk" else MEMORY
    if not parent.is_dir():
        pytest.skip(f"there is no {parent}")
    with TemporaryDirectory(prefix="extractor-bench-", dir=parent) as folder:
        yield request.param, Path(folder)


def settle(*files: Path) -> Callable[[], None]:
    """Nothing of the round before may still be on its way to the disk."""

    def run() -> None:
        for file in files:
            file.unlink(missing_ok=True)
        os.sync()

    return run


def raw(folder: Path, sample: np.ndarray) -> Variant:
    file = folder / "raw"
    return Variant(
        lambda: write_raw(file, sample, LOAD.samples), "one file, write() of whole samples, one fsync", settle(file)
    )


def memcpy(sample: np.ndarray, *, touched: bool) -> Variant:
    target = np.ones((LOAD.samples, *sample.shape), sample.dtype) if touched else None

    def run() -> None:
        into = np.empty((LOAD.samples, *sample.shape), sample.dtype) if target is None else target
        for part in into:
            np.copyto(part, sample)

    return Variant(run, "into memory " + ("touched before" if touched else "that was never touched, as tmpfs gives it"))


def pipeline(folder: Path, codec: str = "none") -> Variant:
    run = Run(folder / f"store-{codec}", LOAD, make_steps(LOAD), codec=codec)

    def before() -> None:
        run.prepare()
        os.sync()
        run.open()

    def extra() -> dict[str, float]:
        split = {name: round(run.status[f"{name}_seconds"], 3) for name in ("gather", "stalled", "write")}
        return {"stored/payload": round(run.stored_bytes() / LOAD.nbytes, 3), **{f"{k} s": v for k, v in split.items()}}

    note = "last round: gather and stall on the engine's thread, write on the writer's (with detectors)"
    return Variant(run.write, note, before, extra)


def test_ceiling(benchmark, place):
    kind, folder = place
    sample = states(LOAD.tokens * ROW_BYTES)
    variants = {"raw sequential write + fsync": raw(folder, sample)}
    if kind == "tmpfs":
        copies = {"memcpy": memcpy(sample, touched=True), "memcpy, fresh memory": memcpy(sample, touched=False)}
        variants = {**copies, **variants}
    variants["gather + ring + store"] = pipeline(folder)
    variants["gather + ring + store, shuffle-zstd"] = pipeline(folder, "shuffle-zstd")
    title = f"pipeline on {kind}: {SHAPE}"
    compare(benchmark, title, variants, rounds=5, work=TOKENS, rate_unit="tokens/s")


def crew(count: int, folder: Path, steps: list) -> Crew:
    def make(rank: int) -> Orders:
        run = Run(folder, LOAD.share(count), steps, rank=rank)
        return {"prepare": run.prepare if rank == 0 else lambda: None, "open": run.open, "write": run.write}

    return Crew(count, make)


def several(members: Crew) -> Variant:
    def before() -> None:
        members.tell("prepare")
        os.sync()
        members.tell("open")

    return Variant(lambda: members.tell("write"), "a process and a shard a writer, one store", before)


def test_scaling(benchmark, place):
    kind, folder = place
    need = WRITERS[-1] * (6 * (64 << 20)) + 4 * LOAD.nbytes  # rings, and tiles and commits on their way
    if not TOY and need > psutil.virtual_memory().available:
        pytest.skip(f"{WRITERS[-1]} writers need about {need / 2**30:.0f} GiB of free memory")
    steps = make_steps(LOAD)
    with ExitStack() as stack:
        crews = {count: stack.enter_context(crew(count, folder / str(count), steps)) for count in WRITERS}
        variants = {f"{count} writer{'s' if count > 1 else ''}": several(members) for count, members in crews.items()}
        title = f"writers on {kind}: {SHAPE} in all"
        compare(benchmark, title, variants, rounds=3, work=TOKENS, rate_unit="tokens/s")
