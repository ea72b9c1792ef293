"""How close is reading a sample from a store to `preadv` from a flat file, warm and cold?

    pytest bench/store_read.py --benchmark-columns=median,iqr,rounds --basetemp=/path/on/the/disk

A round reads every sample once, in random order, into one reused buffer. Each round of a variant follows a round of
`preadv` over a flat file of the same bytes; `of_preadv` is the median of preadv time / variant time. Cold: the kernel
is told to drop the file's pages first (posix_fadvise), which it does where nobody else has them mapped.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_data import states, write_raw, write_store

from extractor.store import Store

TOTAL_BYTES = 256_000_000
ROUNDS = 7
Read = Callable[[int, np.ndarray], None]


@pytest.fixture(scope="module", params=[8, 64], ids=lambda megabytes: f"{megabytes}MB")
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    import torch
    from safetensors.numpy import save_file

    root = tmp_path_factory.mktemp("read")
    sample = states(request.param * 1_000_000)
    count = TOTAL_BYTES // sample.nbytes
    for name, codec in (("store", "none"), ("zstd", "shuffle-zstd")):
        write_store(root / name, sample, count, codec)
    write_raw(root / "flat", sample, count)
    for number in range(count):
        save_file({"hidden_states": sample}, root / f"{number}.safetensors")
        torch.save(torch.from_numpy(sample), root / f"{number}.pt")
        np.save(root / f"{number}.npy", sample)
    os.sync()
    return root, sample


def preadv(root: Path, sample: np.ndarray) -> Read:
    fd = os.open(root / "flat", os.O_RDONLY)

    def read(number: int, out: np.ndarray) -> None:
        assert os.preadv(fd, [out.view(np.uint8).reshape(-1).data], number * out.nbytes) == out.nbytes

    return read


def store(name: str, *, check: bool = False) -> Callable[[Path, np.ndarray], Read]:
    def opened(root: Path, sample: np.ndarray) -> Read:
        reader = Store.open(root / name, check=check)
        return lambda number, out: reader[str(number)].copy_rows(out)

    return opened


def safetensors(root: Path, sample: np.ndarray) -> Read:
    from safetensors import safe_open

    def read(number: int, out: np.ndarray) -> None:
        with safe_open(root / f"{number}.safetensors", "np") as file:
            np.copyto(out, file.get_tensor("hidden_states"))

    return read


def torch_load(root: Path, sample: np.ndarray) -> Read:
    import torch

    return lambda number, out: np.copyto(out, torch.load(root / f"{number}.pt").numpy())


def numpy_load(root: Path, sample: np.ndarray) -> Read:
    return lambda number, out: np.copyto(out, np.load(root / f"{number}.npy"))


READS = {
    "store": store("store"),
    "store, check=True": store("store", check=True),
    "store, shuffle-zstd": store("zstd"),
    "safetensors": safetensors,
    "torch.load": torch_load,
    "np.load": numpy_load,
}


def drop(root: Path) -> None:
    for file in (path for path in root.rglob("*") if path.is_file()):
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@pytest.mark.parametrize("state", ["warm", "cold"])
@pytest.mark.parametrize("name", READS)
def test_read(benchmark: Any, data: tuple[Path, np.ndarray], name: str, state: str) -> None:
    root, sample = data
    numbers = list(range(TOTAL_BYTES // sample.nbytes))
    out = np.empty_like(sample)
    base, variant = preadv(root, sample), READS[name](root, sample)
    random.Random(0).shuffle(numbers)

    def read_all(read: Read) -> None:
        for number in numbers:
            read(number, out)

    def prepared(read: Read) -> None:
        read_all(read) if state == "warm" else drop(root)

    preadv_seconds: list[float] = []

    def before() -> None:
        prepared(base)
        start = time.perf_counter()
        read_all(base)
        preadv_seconds.append(time.perf_counter() - start)
        prepared(variant)

    benchmark.group = f"{state}, samples of {sample.nbytes / 1e6:.0f} MB"
    benchmark.name = name
    benchmark.pedantic(lambda: read_all(variant), setup=before, rounds=ROUNDS)
    np.testing.assert_array_equal(out.view(np.uint16), sample.view(np.uint16))
    times = benchmark.stats.stats.data
    ratios = [base_time / own for base_time, own in zip(preadv_seconds, times, strict=True)]
    benchmark.extra_info |= {
        "of_preadv": round(statistics.median(ratios), 2),
        "MB/s": round(len(numbers) * sample.nbytes / 1e6 / statistics.median(times)),
    }
    print(f"\n{benchmark.group}: {name}: {benchmark.extra_info}")
