"""How close is reading a sample from a store to `preadv` from a flat file, warm and cold?

    pytest bench/store_read.py -s

A round reads every sample once, in random order, into one reused buffer. The baseline is `preadv` over a flat file of
the same bytes. Warm: read once just before. Cold: the kernel is told to drop the files' pages (posix_fadvise), which it
does where nobody else has them mapped.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from settings import DISK, size
from store_data import states, write_raw, write_store
from timing import Variant, compare

from extractor.store import Store

TOTAL_BYTES = size(256_000_000, toy=2_000_000)
ROUNDS = 7
Read = Callable[[int, np.ndarray], None]


@pytest.fixture(scope="module", params=size([8, 64], toy=[1]), ids=lambda megabytes: f"{megabytes}MB")
def data(request: pytest.FixtureRequest) -> Iterator[tuple[Path, np.ndarray]]:
    with TemporaryDirectory(prefix="extractor-bench-", dir=DISK) as folder:
        sample = write_all(Path(folder), request.param * 1_000_000)
        yield Path(folder), sample


def write_all(root: Path, sample_bytes: int) -> np.ndarray:
    """The same samples in each format."""
    import torch
    from safetensors.numpy import save_file

    sample = states(sample_bytes)
    count = TOTAL_BYTES // sample.nbytes
    for name, codec in (("store", "none"), ("zstd", "shuffle-zstd")):
        write_store(root / name, sample, count, codec)
    write_raw(root / "flat", sample, count)
    for number in range(count):
        save_file({"hidden_states": sample}, root / f"{number}.safetensors")
        torch.save(torch.from_numpy(sample), root / f"{number}.pt")
        np.save(root / f"{number}.npy", sample)
    os.sync()
    return sample


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


NOTES = {
    "preadv": "of a flat file with the same bytes: no index, no samples",
    "store": "no checksum, as a trainer reads by default",
    "store, check=True": "xxh3 of every tile",
    "store, shuffle-zstd": "decompressed",
}


def variant(name: str, root: Path, sample: np.ndarray, state: str) -> Variant:
    numbers = list(range(TOTAL_BYTES // sample.nbytes))
    random.Random(0).shuffle(numbers)
    read, out = {"preadv": preadv, **READS}[name](root, sample), np.empty_like(sample)

    def read_all() -> None:
        for number in numbers:
            read(number, out)

    read_all()
    np.testing.assert_array_equal(out.view(np.uint16), sample.view(np.uint16))
    return Variant(read_all, NOTES.get(name, "no checksum"), read_all if state == "warm" else lambda: drop(root))


@pytest.mark.parametrize("state", ["warm", "cold"])
def test_read(benchmark: Any, data: tuple[Path, np.ndarray], state: str) -> None:
    root, sample = data
    variants = {name: variant(name, root, sample, state) for name in ["preadv", *READS]}
    title = f"store read, {state}: {TOTAL_BYTES / 1e6:,.0f} MB in samples of {sample.nbytes / 1e6:.0f} MB"
    compare(benchmark, title, variants, rounds=ROUNDS, work=TOTAL_BYTES / 1e9, rate_unit="GB/s")
