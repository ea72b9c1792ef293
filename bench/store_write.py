"""How close is a durable store to the disk, beside files written one a sample?

    python -m pytest -s bench/store_write.py --benchmark-columns=median,iqr,rounds --basetemp=/path/on/the/disk

A round adds samples until 384 MB are durable (`flush`) to a store whose writer is open and has written as much before:
the state of a run, in which memory is touched for the first time once. Files one a sample are new in each round, and
synced every 64 MB, as often as the store commits. Each round stands between two raw sequential writes of the same bytes
to a new file with one fsync; `of_raw` is the median over the rounds of raw time (mean of the two) / own time, so that a
disk that others use too cancels out. On tmpfs there is memcpy into fresh memory too, which a write there is at least.
Samples are [T, 3, 7168] fp16 states with bf16 precision.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count as numbers
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_data import StoreWriter, states, write_raw

ROUND_BYTES = 384_000_000
SYNC_BYTES = 64_000_000
ROUNDS = 5


class StoreVariant:
    def __init__(self, codec: str = "none", **options: int) -> None:
        self._codec, self._options = codec, options

    def open(self, root: Path, sample: np.ndarray) -> None:
        self._writer = StoreWriter(root / "store", sample, self._codec, **self._options)

    def write(self, count: int) -> None:
        self._writer.write(count)

    def close(self) -> float:
        return self._writer.close()


class FileVariant:
    """One file a sample, synced in groups."""

    def __init__(self, save: Callable[[Path, np.ndarray], None]) -> None:
        self._save = save

    def open(self, root: Path, sample: np.ndarray) -> None:
        self._root, self._sample, self._names = root, sample, numbers()

    def write(self, count: int) -> None:
        pending: list[Path] = []
        for _ in range(count):
            pending.append(self._root / str(next(self._names)))
            self._save(pending[-1], self._sample)
            if len(pending) * self._sample.nbytes >= SYNC_BYTES:
                pending = _sync(pending)
        _sync(pending)

    def close(self) -> None:
        """Nothing is open."""


def _sync(files: list[Path]) -> list[Path]:
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    return []


def torch_save(file: Path, sample: np.ndarray) -> None:
    import torch

    torch.save(torch.from_numpy(sample), file)


def safetensors_save(file: Path, sample: np.ndarray) -> None:
    from safetensors.numpy import save_file

    save_file({"hidden_states": sample}, file)


def numpy_save(file: Path, sample: np.ndarray) -> None:
    with file.open("wb") as handle:
        np.save(handle, sample)


class Memcpy:
    """Into memory that was never touched."""

    def open(self, root: Path, sample: np.ndarray) -> None:
        self._sample = sample

    def write(self, count: int) -> None:
        target = np.empty((count, *self._sample.shape), self._sample.dtype)
        for number in range(count):
            np.copyto(target[number], self._sample)

    def close(self) -> None:
        """Nothing is open."""


VARIANTS = {
    "store": lambda: StoreVariant(),
    "store, one lane": lambda: StoreVariant(lanes=1),
    "store, shuffle-zstd": lambda: StoreVariant("shuffle-zstd"),
    "torch.save": lambda: FileVariant(torch_save),
    "safetensors": lambda: FileVariant(safetensors_save),
    "np.save": lambda: FileVariant(numpy_save),
    "memcpy": Memcpy,
}


@pytest.fixture(params=["disk", "tmpfs"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
        return
    if not Path("/dev/shm").is_dir():
        pytest.skip("no tmpfs at /dev/shm")
    path = Path(f"/dev/shm/extractor-bench-{os.getpid()}")
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("megabytes", [4, 64])
@pytest.mark.parametrize("name", VARIANTS)
def test_write(benchmark: Any, root: Path, name: str, megabytes: int) -> None:
    sample = states(megabytes * 1_000_000)
    count = ROUND_BYTES // sample.nbytes
    variant: Any = VARIANTS[name]()
    variant.open(root, sample)
    variant.write(count)
    raw_seconds: list[float] = []

    def raw() -> None:
        os.sync()
        start = time.perf_counter()
        write_raw(root / "raw", sample, count)
        raw_seconds.append(time.perf_counter() - start)
        (root / "raw").unlink()

    benchmark.group = f"{'tmpfs' if 'shm' in str(root) else 'disk'}, samples of {megabytes} MB"
    benchmark.name = name
    benchmark.pedantic(lambda: variant.write(count), setup=raw, rounds=ROUNDS)
    raw()
    ratios = [(a + b) / 2 / own for (a, b), own in zip(pairwise(raw_seconds), benchmark.stats.stats.data, strict=True)]
    benchmark.extra_info |= {
        "of_raw": round(statistics.median(ratios), 2),
        "MB/s": round(count * sample.nbytes / 1e6 / statistics.median(benchmark.stats.stats.data)),
        "file_bytes_per_payload": variant.close(),
    }
    print(f"\n{benchmark.group}: {name}: {benchmark.extra_info}")
