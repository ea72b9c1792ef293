"""Which engine speed can this machine's disk follow, with gather, ring and store at full speed and no model?

    pytest bench/pipeline.py -s

Rows of Kimi-K2.5's shape, 43,008 bytes a token, with the defaults of `extract`: detectors on, checksums, durable at the
end. A round begins with an open session whose shards exist (paid once a run) and ends after the last fsync.
On disk the ceiling is one sequential write of the same bytes with one fsync; on tmpfs, where no disk limits, it is a
memcpy into memory that was touched before.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from settings import size
from store_data import LAYERS, ROW_BYTES, states, write_raw
from synthetic import Load, Run, make_steps
from timing import Variant, compare, warm_page_cache

LOAD = Load(samples=size(8, toy=2), tokens=size(2048, toy=96), step_rows=size(2048, toy=64))
COPIES = 4
TOKENS = LOAD.samples * LOAD.tokens
SHAPE = f"{LOAD.samples} samples of {LOAD.tokens:,} x {LAYERS} x 7168, {LOAD.nbytes / 1e6:,.0f} MB"


def settle(folder: Path, *files: Path) -> Callable[[], None]:
    """Nothing of the round before may still be on its way to the disk."""

    def run() -> None:
        for file in files:
            file.unlink(missing_ok=True)
        os.sync()
        warm_page_cache(folder, 2 * LOAD.nbytes)

    return run


def raw(folder: Path, sample: np.ndarray) -> Variant:
    file = folder / "raw"
    return Variant(
        lambda: write_raw(file, sample, LOAD.samples),
        "one file, write() of whole samples, one fsync",
        settle(folder, file),
    )


def memcpy(sample: np.ndarray, *, touched: bool) -> Variant:
    """A few samples' worth of memory takes all of them in turn, so that the benchmark stays small."""
    kept = [np.ones_like(sample) for _ in range(COPIES)] if touched else None

    def run() -> None:
        targets = kept or _fresh(sample)
        for number in range(LOAD.samples):
            if kept is None and number and number % COPIES == 0:
                targets = _fresh(sample)
            np.copyto(targets[number % COPIES], sample)

    return Variant(
        run,
        "into memory " + ("touched before" if touched else "that was never touched, as tmpfs gives it"),
    )


def _fresh(sample: np.ndarray) -> list[np.ndarray]:
    """Pages straight from the system, given back when the arrays go."""
    shape, kind = sample.shape, sample.dtype
    return [np.frombuffer(mmap.mmap(-1, sample.nbytes), kind).reshape(shape) for _ in range(COPIES)]


def pipeline(folder: Path, codec: str = "none") -> Variant:
    run = Run(folder / f"store-{codec}", LOAD, make_steps(LOAD), codec=codec)

    def before() -> None:
        run.prepare()
        run.open()
        settle(folder)()

    def extra() -> dict[str, float]:
        split = {name: round(run.status[f"{name}_seconds"], 3) for name in ("gather", "stalled", "write")}
        return {"stored/payload": round(run.stored_share(), 3), **{f"{k} s": v for k, v in split.items()}}

    note = "last round: gather and stall on the engine's thread, write on the writer's (with detectors)"
    return Variant(run.write, note, before, run.release, extra)


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
