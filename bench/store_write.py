"""How close is a durable store to the disk, beside files written one a sample?

    python -m pytest -s bench/store_write.py

A round writes 768 MB (of 64 MB samples: three for each of four lanes) and ends when they are durable: `flush` of a
store whose writer is open (its shards exist and its memory was touched, as in a run after its first second), or the
last fsync of files one a sample, which are synced every 64 MB. The baseline is one sequential write of the same bytes
to a new file with one fsync. On tmpfs there is memcpy too: into a new file's map, and into fresh memory, for which
NumPy asks the kernel for huge pages. A tmpfs has these where it was mounted with `huge=within_size`;
EXTRACTOR_BENCH_MEMORY may name such a folder. Samples are [T, 3, 7168] fp16 states with bf16 precision. vLLM's
hidden-states connector writes one safetensors file a sample; it needs a GPU, so that its write path is what can be
timed here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from settings import size
from store_data import StoreWriter, states, write_raw
from timing import Variant, compare, warm_page_cache

ROUND_BYTES = size(768_000_000, toy=2_000_000)
SYNC_BYTES = 64_000_000
ROUNDS = 5


def emptied(folder: Path) -> None:
    """Nothing of the round before may still be on its way to the disk."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    settle(folder)


def settle(folder: Path) -> None:
    os.sync()
    warm_page_cache(folder, 2 * ROUND_BYTES)


def store(folder: Path, sample: np.ndarray, count: int, codec: str = "none", **options: int) -> Variant:
    writers: list[StoreWriter] = []
    sizes: list[float] = []

    def before() -> None:
        if writers:
            sizes.append(writers.pop().close())
        emptied(folder)
        writers.append(StoreWriter(folder / "store", sample, codec, **options))
        writers[0].start()
        settle(folder)

    def extra() -> dict[str, float]:
        return {"stored/payload": round(writers.pop().close(), 4)}

    return Variant(
        lambda: writers[0].write(count), "checksums, sealed samples, durable every 32 MB", before, extra=extra
    )


def files(folder: Path, sample: np.ndarray, count: int, save: Callable[[Path, np.ndarray], None]) -> Variant:
    """One file a sample, synced in groups."""

    def run() -> None:
        pending: list[Path] = []
        for number in range(count):
            pending.append(folder / str(number))
            save(pending[-1], sample)
            if len(pending) * sample.nbytes >= SYNC_BYTES:
                pending = _sync(pending)
        _sync(pending)

    return Variant(run, "no checksums; a name a sample, no index", lambda: emptied(folder))


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


def raw(folder: Path, sample: np.ndarray, count: int) -> Variant:
    return Variant(lambda: write_raw(folder / "raw", sample, count), "no structure at all", lambda: emptied(folder))


def memcpy(sample: np.ndarray, count: int) -> Variant:
    def run() -> None:
        _copy(sample, np.empty((count, *sample.shape), sample.dtype))

    return Variant(run, "into memory that was never touched; no files")


def memcpy_to_file(folder: Path, sample: np.ndarray, count: int) -> Variant:
    def run() -> None:
        _copy(sample, np.memmap(folder / "map", sample.dtype, "w+", shape=(count, *sample.shape)))

    return Variant(run, "no room reserved, no structure", lambda: emptied(folder))


def _copy(sample: np.ndarray, target: np.ndarray) -> None:
    for number in range(len(target)):
        np.copyto(target[number], sample)


@pytest.mark.parametrize("megabytes", size([4, 64], toy=[1]))
def test_write(benchmark, place, megabytes):
    kind, folder = place
    sample = states(megabytes * 1_000_000)
    count = ROUND_BYTES // sample.nbytes
    work = (sample, count)
    variants = {
        "raw sequential write + fsync": raw(folder / "raw", *work),
        "store": store(folder / "store", *work),
        "store, one lane": store(folder / "lane", *work, lanes=1),
        "store, shuffle-zstd": store(folder / "zstd", *work, codec="shuffle-zstd"),
        "torch.save": files(folder / "torch", *work, torch_save),
        "safetensors": files(folder / "safetensors", *work, safetensors_save),
        "np.save": files(folder / "numpy", *work, numpy_save),
    }
    if kind == "tmpfs":
        variants["memcpy into a file's map"] = memcpy_to_file(folder / "map", *work)
        variants["memcpy into memory"] = memcpy(*work)
    title = f"store write on {kind}: {count} samples of {megabytes} MB"
    compare(benchmark, title, variants, rounds=ROUNDS, work=count * sample.nbytes / 1e9, rate_unit="GB/s")
