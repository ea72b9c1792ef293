"""How fast do batches come out of a store whose bytes are in the page cache, beside a memcpy and the peers' files?

    pytest bench/loader.py -s

Every variant delivers the same 403 MB once per round: 48 samples of 8 MiB, [T, 4, 2048] fp16, in batches of 2,048
tokens. The ceiling copies the same bytes between arrays that exist. Peers: one torch.save or safetensors file per
sample, loaded with their own loader and copied into the batch. `process` is a torch DataLoader with one worker. Set
EXTRACTOR_BENCH_DIR to put the files on another disk; what is not in the page cache after the warm-up round shows as
slower.
"""

from __future__ import annotations

import importlib.util
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from settings import DISK, size
from store_data import manifest
from timing import Variant, compare, keep
from torch.utils.data import DataLoader

from extractor import HiddenStateDataset
from extractor.benchmarks.table import Table
from extractor.exports import export_store
from extractor.loader import HiddenStateSamples
from extractor.record import STATS
from extractor.store import ShardWriter, Store, prepare_store

SAMPLES, TOKENS, LAYERS, HIDDEN = size(48, toy=4), size(512, toy=8), 4, 2048
BUDGET = 4 * TOKENS
TOTAL = SAMPLES * TOKENS * LAYERS * HIDDEN * 2


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory(dir=DISK) as path:
        yield Path(path)


@pytest.fixture(scope="module")
def states():
    return torch.randn(SAMPLES, TOKENS, LAYERS, HIDDEN, dtype=torch.float16)


@pytest.fixture(scope="module")
def store(folder, states):
    shape = {"num_layers": 16, "layer_ids": (2, 8, 13, 16), "hidden_size": HIDDEN, "model_dtype": "float16"}
    prepare_store(folder / "store", replace(manifest(), **shape))
    ids, mask = np.zeros(TOKENS, np.int32), np.ones(TOKENS, np.uint8)
    with ShardWriter(folder / "store", run_id="bench", writer=0) as writer:
        for n, rows in enumerate(states.numpy()):
            writer.write_rows(f"s{n}", 0, rows)
            writer.seal(f"s{n}", token_ids=ids, loss_mask=mask, stats=np.zeros(LAYERS, STATS))
    return folder / "store"


@pytest.fixture(scope="module")
def files(folder, states):
    for n, rows in enumerate(states):
        sample = {"input_ids": torch.zeros(TOKENS, dtype=torch.int64), "hidden_states": rows.clone()}
        torch.save(sample, folder / f"{n}.pt")
        save_file(sample, folder / f"{n}.safetensors")
    return folder


def drain(batches):
    return sum(batch["hidden_states"].nbytes for batch in batches)


def memcpy(request):
    states = request("states")
    targets = [torch.zeros_like(states[:4]) for _ in range(2)]  # a trainer holds one batch while the next is read

    def run():
        for number, part in enumerate(states.split(4)):
            targets[number % 2].copy_(part)
        return TOTAL

    return run


def ours(check, **options):
    def prepare(request):
        data = HiddenStateDataset(Store.open(request("store"), check=check), BUDGET)
        return lambda: drain(data.loader(**options) if options else data)

    return prepare


def process(request):
    data = HiddenStateDataset(Store.open(request("store")), BUDGET)
    return lambda: drain(DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="fork"))


def map_style(request):
    samples = HiddenStateSamples(Store.open(request("store")))
    return lambda: drain(samples[n] for n in range(SAMPLES))


def peers(load):
    """One file per sample, loaded and copied into batches that exist already: their best case, since collators make a
    new one. Two in turn, because a trainer holds one while the next is read."""

    def prepare(request):
        folder = request("files")
        batches = [torch.zeros(BUDGET, LAYERS, HIDDEN, dtype=torch.float16) for _ in range(2)]

        def run():
            for n in range(SAMPLES):
                batch, place = divmod(n, BUDGET // TOKENS)
                rows = slice(place * TOKENS, (place + 1) * TOKENS)
                batches[batch % 2][rows] = load(folder, n)["hidden_states"]
            return TOTAL

        return run

    return prepare


SPECULATORS = "speculators' ArrowDataset"


def speculators(request):
    """Its trainer's dataset and collate function, over an export of the same store."""
    from speculators.train.data import ArrowDataset, CollateFn

    out = request("folder") / "speculators"
    export_store(request("store"), "speculators", out)
    data, collate = ArrowDataset(TOKENS, out, on_missing="raise"), CollateFn(BUDGET, HIDDEN)

    def run():
        delivered = 0
        for first in range(0, SAMPLES, BUDGET // TOKENS):
            batch = collate([data[n] for n in range(first, first + BUDGET // TOKENS)])
            delivered += batch["hidden_states"].nbytes + batch["verifier_last_hidden_states"].nbytes
        return delivered

    return run


VARIANTS = {
    "memcpy of the same bytes": memcpy,
    "ours, in the trainer's thread": ours(check=False),
    "ours, one read-ahead thread": ours(check=False, prefetch=2, threads=1),
    "ours, checksums verified": ours(check=True),
    "ours, map-style": map_style,
    "ours, process": process,
    "torch.load per sample": peers(lambda folder, n: torch.load(folder / f"{n}.pt")),
    "safetensors per sample": peers(lambda folder, n: load_file(folder / f"{n}.safetensors")),
    SPECULATORS: speculators,
}
NOTES = {
    "memcpy of the same bytes": "between arrays that exist; no files",
    "ours, checksums verified": "xxh3 of every tile",
    "ours, process": "a torch DataLoader with one worker process, its start included",
    SPECULATORS: "safetensors files, through its CollateFn; converts to bf16",
    "torch.load per sample": "no checksums; copied into a batch that exists",
    "safetensors per sample": "no checksums; copied into a batch that exists",
}


def test_delivery(benchmark, request):
    absent = [SPECULATORS] if importlib.util.find_spec("speculators") is None else []
    made = {name: make(request.getfixturevalue) for name, make in VARIANTS.items() if name not in absent}
    runs = {name: Variant(run, NOTES.get(name, "")) for name, run in made.items()}
    for name, variant in runs.items():
        assert variant.run() == TOTAL, name
    title = f"loader: {TOTAL / 1e6:,.0f} MB in {SAMPLES} samples, page cache warm"
    remark = "".join(f"{name} is not measured: pip install --no-deps speculators hs-connectors" for name in absent)
    compare(benchmark, title, runs, rounds=7, work=TOTAL / 1e9, rate_unit="GB/s", remark=remark)


def test_memory_stays_flat(benchmark, store):
    """The resident set may not grow after the first batches."""
    import psutil

    process = psutil.Process()
    data = HiddenStateDataset(Store.open(store), BUDGET)
    batches, every = size(10_000, toy=20), size(500, toy=5)

    def read() -> list[int]:
        seen, sizes = 0, []
        while seen < batches:
            for batch in data:
                seen += 1
                del batch
                if seen % every == 0:
                    sizes.append(process.memory_info().rss >> 20)
        return sizes

    sizes = benchmark.pedantic(read, rounds=1)
    measured = {f"after {every} batches": sizes[:1], f"after {batches} batches": sizes[-1:]}
    keep(benchmark, Table.of_rounds(f"loader: resident memory over {batches:,} batches", measured, unit="MiB"))
    assert max(sizes[1:]) < sizes[0] + 64
