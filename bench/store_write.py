"""How close is a durable store to the disk, beside files written one a sample?

    pytest bench/store_write.py --benchmark-columns=median,iqr,rounds --basetemp=/path/on/the/disk

Each round times a raw sequential write of the same bytes with one fsync, then the variant, then the raw write again;
`of_raw` is the median over the rounds of raw time (mean of the two) / variant time, so that a disk that others use too
cancels out. Files a sample are synced every 64 MB, as often as the store commits. The tmpfs rows compare with memcpy
into fresh memory, since a write to tmpfs is that. Samples are [T, 3, 7168] fp16 states with bf16 precision.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_data import states, write_raw, write_store

TOTAL_BYTES = 512_000_000
SYNC_BYTES = 64_000_000
ROUNDS = 5
Write = Callable[[Path, np.ndarray, int], float | None]


def each_sample(save: Callable[[Path, np.ndarray], None]) -> Write:
    """One file a sample, synced in groups."""

    def run(folder: Path, sample: np.ndarray, count: int) -> None:
        folder.mkdir()
        pending: list[Path] = []
        for number in range(count):
            pending.append(folder / str(number))
            save(pending[-1], sample)
            if len(pending) * sample.nbytes >= SYNC_BYTES or number == count - 1:
                for file in pending:
                    fd = os.open(file, os.O_RDONLY)
                    os.fsync(fd)
                    os.close(fd)
                pending = []

    return run


def torch_save(file: Path, sample: np.ndarray) -> None:
    import torch

    torch.save(torch.from_numpy(sample), file)


def safetensors_save(file: Path, sample: np.ndarray) -> None:
    from safetensors.numpy import save_file

    save_file({"hidden_states": sample}, file)


def numpy_save(file: Path, sample: np.ndarray) -> None:
    with file.open("wb") as handle:
        np.save(handle, sample)


def memcpy(folder: Path, sample: np.ndarray, count: int) -> None:
    """Into memory that was never touched."""
    target = np.empty((count, *sample.shape), sample.dtype)
    for number in range(count):
        np.copyto(target[number], sample)


WRITES: dict[str, Write] = {
    "store": write_store,
    "store, one lane": lambda folder, sample, count: write_store(folder, sample, count, lanes=1),
    "store, shuffle-zstd": lambda folder, sample, count: write_store(folder, sample, count, "shuffle-zstd"),
    "torch.save": each_sample(torch_save),
    "safetensors": each_sample(safetensors_save),
    "np.save": each_sample(numpy_save),
}


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@pytest.mark.parametrize("megabytes", [4, 64])
@pytest.mark.parametrize("place", ["disk", "tmpfs"])
@pytest.mark.parametrize("name", [*WRITES, "memcpy"])
def test_write(benchmark: Any, tmp_path: Path, name: str, place: str, megabytes: int) -> None:
    if place == "tmpfs" and not Path("/dev/shm").is_dir():
        pytest.skip("no tmpfs at /dev/shm")
    if name == "memcpy" and place == "disk":
        pytest.skip("memory has no disk")
    sample = states(megabytes * 1_000_000)
    count = TOTAL_BYTES // sample.nbytes
    root = tmp_path if place == "disk" else Path(f"/dev/shm/extractor-bench-{os.getpid()}")
    root.mkdir(exist_ok=True)
    raw: list[float] = []
    sizes: list[float | None] = []

    def before() -> None:
        shutil.rmtree(root / "out", ignore_errors=True)
        os.sync()
        raw.append(timed(lambda: write_raw(root / "raw", sample, count)))
        (root / "raw").unlink()

    def run() -> None:
        sizes.append((memcpy if name == "memcpy" else WRITES[name])(root / "out", sample, count))

    benchmark.group = f"{place}, samples of {megabytes} MB"
    benchmark.name = name
    benchmark.pedantic(run, setup=before, rounds=ROUNDS)
    before()
    shutil.rmtree(root, ignore_errors=True)
    times = benchmark.stats.stats.data
    ratios = [(a + b) / 2 / own for (a, b), own in zip(pairwise(raw), times, strict=True)]
    benchmark.extra_info |= {
        "of_raw": round(statistics.median(ratios), 2),
        "MB/s": round(count * sample.nbytes / 1e6 / statistics.median(times)),
        "file_bytes_per_payload": sizes[-1],
    }
    print(f"\n{benchmark.group}: {name}: {benchmark.extra_info}")
