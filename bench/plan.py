"""How long does a plan of millions of lengths take, and in how much memory?

    pytest bench/plan.py -s

10 million lengths unless PLAN_MILLIONS=100 says otherwise: 100 million are 4.7 GB of JSON Lines. Target for those: 10 s
and 2 GiB for the lines and for the samples file, on a machine with nothing else to do. Each plan is a process of its
own, its start included; its CPU seconds and peak memory stand beside it. Reading the bytes without looking at them is
the ceiling. The three parsers of lines are compared on one block, one thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from settings import size
from timing import Variant, compare

from extractor.budget import text_files
from extractor.budget.records import parse_lines

SAMPLES = size(round(float(os.environ.get("PLAN_MILLIONS", "10")) * 1e6), toy=2000)
CHUNK = min(SAMPLES, 1_000_000)
TOKENS_PER_GROUP = size(50_000_000, toy=50_000)
BLOCK_LINES = size(100_000, toy=1000)
ONE_PLAN = """
import json, sys, time
from pathlib import Path
from extractor.planning import PlanConfig, plan
total = plan(PlanConfig(data=(Path(sys.argv[1]),), hidden_size=7168, num_layers=61, max_length=8192)).total
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
row = {"cpu_s": time.process_time(), "peak_gib": int(peak.split()[1]) / 2**20}
print(json.dumps({**row, "samples": total.samples, "tokens": total.tokens}))
"""


def lengths(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.clip(rng.lognormal(7.5, 1.0, count), 20, 65_000).astype(np.int32)


def write_lines(file: Path, rng: np.random.Generator) -> None:
    with file.open("w") as lines:
        for start in range(0, SAMPLES, CHUNK):
            some = enumerate(lengths(rng, min(CHUNK, SAMPLES - start)).tolist(), start)
            lines.write("".join(f'{{"id": "B1-{i}", "seq_len": {n}}}\n' for i, n in some))


def write_samples_like(file: Path, rng: np.random.Generator) -> None:
    """The columns of a samples file that a plan reads, of ten sources."""
    schema = pa.schema([("source", pa.string()), ("num_tokens", pa.int32())])
    sources = pa.array([f"B{i}" for i in range(10)])
    with pq.ParquetWriter(file, schema) as table:
        for start in range(0, SAMPLES, CHUNK):
            some = lengths(rng, min(CHUNK, SAMPLES - start))
            names = sources.take(pa.array(rng.integers(0, 10, some.size)))
            table.write_table(pa.table({"source": names, "num_tokens": some}, schema))


def write_ids(file: Path, rng: np.random.Generator) -> None:
    """Token ids without any count: five tokens for each of the other files' lengths."""
    schema = pa.schema([("input_ids", pa.list_(pa.int32()))])
    with pq.ParquetWriter(file, schema) as table:
        for _ in range(max(1, SAMPLES * 5 // TOKENS_PER_GROUP)):
            some = lengths(rng, TOKENS_PER_GROUP // 2500)
            offsets = np.concatenate([[0], np.cumsum(some, dtype=np.int32)])
            ids = rng.integers(0, 163_840, offsets[-1], dtype=np.int32)
            table.write_table(pa.table([pa.ListArray.from_arrays(offsets, ids)], schema))


FILES = {"lines.jsonl": write_lines, "samples.parquet": write_samples_like, "ids.parquet": write_ids}


@pytest.fixture(scope="module", params=FILES)
def file(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plan") / request.param
    FILES[request.param](path, np.random.default_rng(0))
    yield path
    path.unlink()


def one_plan(path: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", ONE_PLAN, str(path)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def read_bytes(path: Path) -> None:
    buffer = bytearray(4 << 20)
    with path.open("rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def test_plan(benchmark, file):
    found: dict[str, float] = {}
    variants = {
        "reading the bytes alone": Variant(lambda: read_bytes(file), "4 MiB at a time, in this process"),
        "plan": Variant(lambda: found.update(one_plan(file)), "a process, its start included", extra=lambda: found),
    }
    title = f"plan of {file.name}, {file.stat().st_size / 1e6:,.0f} MB"
    compare(benchmark, title, variants, rounds=3)


@pytest.fixture(scope="module")
def block(tmp_path_factory) -> bytes:
    rng = np.random.default_rng(0)
    lines = (f'{{"id": "B1-{i}", "seq_len": {n}}}\n' for i, n in enumerate(lengths(rng, BLOCK_LINES).tolist()))
    return "".join(lines).encode()


PARSERS: dict[str, Callable[[bytes], object]] = {
    "flat lines (Numba)": lambda block: text_files._flat(block, "seq_len"),
    "columns (pyarrow)": lambda block: text_files._columns(block, "seq_len", False),
    "line by line (json)": lambda block: parse_lines(block, Path("x"), 1),
}


def test_parsers(benchmark, block):
    variants = {name: Variant(lambda parse=parse: parse(block)) for name, parse in PARSERS.items()}
    title = f"one block of {BLOCK_LINES:,} flat lines of 45 bytes"
    compare(benchmark, title, variants, rounds=9, work=BLOCK_LINES / 1e6, rate_unit="M samples/s")
