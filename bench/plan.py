"""How long does a plan of 100 million lengths take, and in how much memory?

    python bench/plan.py [--millions 100] [--dir DIR]

Each case runs in its own process, so that its peak memory is its own. The JSON Lines file is about 4.7 GB; it and the
Parquet files are written to DIR and removed. The parsers are then compared on one block of lines, side by side.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CHUNK = 1_000_000
CASES = ("lines.jsonl", "samples.parquet", "ids.parquet")
TARGET_S, TARGET_GIB = 10, 2
TOKENS_IN_IDS = 500_000_000


def lengths(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.clip(rng.lognormal(7.5, 1.0, count), 20, 65_000).astype(np.int32)


def write_inputs(folder: Path, samples: int) -> None:
    """One column of counts as JSON Lines and as Parquet (with ten sources), and token ids without any count."""
    rng = np.random.default_rng(0)
    schema = pa.schema([("source", pa.string()), ("num_tokens", pa.int32())])
    with open(folder / CASES[0], "w") as lines, pq.ParquetWriter(folder / CASES[1], schema) as table:
        for start in range(0, samples, CHUNK):
            some = lengths(rng, min(CHUNK, samples - start))
            lines.write("".join(f'{{"id": "B1-{start + i}", "seq_len": {n}}}\n' for i, n in enumerate(some.tolist())))
            names = pa.array([f"B{i}" for i in range(10)]).take(pa.array(rng.integers(0, 10, some.size)))
            table.write_table(pa.table({"source": names, "num_tokens": some}, schema))
    write_ids(folder / CASES[2], rng, min(TOKENS_IN_IDS, samples * 5))


def write_ids(file: Path, rng: np.random.Generator, tokens: int) -> None:
    schema = pa.schema([("input_ids", pa.list_(pa.int32()))])
    with pq.ParquetWriter(file, schema) as table:
        for _ in range(max(1, tokens // 50_000_000)):
            some = lengths(rng, 50_000_000 // 2500)
            offsets = np.concatenate([[0], np.cumsum(some, dtype=np.int32)])
            ids = rng.integers(0, 163_840, offsets[-1], dtype=np.int32)
            table.write_table(pa.table([pa.ListArray.from_arrays(offsets, ids)], schema))


def one_plan(file: Path) -> None:
    """The whole of `plan`, imports included; prints seconds, CPU seconds, peak memory and what was counted."""
    start = time.perf_counter()
    from extractor.planning import PlanConfig, plan

    result = plan(PlanConfig(data=(file,), hidden_size=7168, num_layers=61, baseline="23.1M/19", max_length=8192))
    seconds, cpu = time.perf_counter() - start, time.process_time()
    total = result.total
    row = {"s": seconds, "cpu_s": cpu, "peak_gib": peak_gib(), "samples": total.samples, "tokens": total.tokens}
    print(json.dumps(row))


def peak_gib() -> float:
    """Peak resident memory since exec (getrusage's figure is inherited from the parent)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / (1 << 20)


def run_case(file: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--one", str(file)], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def raw_read_s(file: Path) -> float:
    """The ceiling: seconds to read the file into one buffer and do nothing with it."""
    buffer = bytearray(4 << 20)
    start = time.perf_counter()
    with open(file, "rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass
    return time.perf_counter() - start


def compare_parsers(file: Path, rounds: int = 7) -> None:
    """The three parsers on the same 4 MiB, interleaved, one thread; medians."""
    from extractor.budget.records import parse_lines
    from extractor.budget.text_files import BLOCK_BYTES, _columns, _flat

    with open(file, "rb") as lines:
        block = lines.read(BLOCK_BYTES)
    block = block[: block.rfind(b"\n") + 1]
    parsers: dict[str, Callable[[], object]] = {
        "flat lines (Numba)": lambda: _flat(block, "seq_len"),
        "columns (pyarrow)": lambda: _columns(block, "seq_len", False),
        "line by line (json)": lambda: parse_lines(block, file, 1),
    }
    times: dict[str, list[float]] = {name: [] for name in parsers}
    for turn in range(rounds + 1):
        for name, parse in parsers.items():
            start = time.perf_counter()
            parse()
            if turn:  # the first turn compiles and warms
                times[name].append(time.perf_counter() - start)
    count = block.count(b"\n")
    for name, seconds in times.items():
        print(f"{name:24}{count / median(seconds) / 1e6:8.2f} M records/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=100)
    parser.add_argument("--dir", type=Path, default=None, help="where the inputs go (about 6 GB for 100 million)")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one_plan(args.one)
        return
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        samples = round(args.millions * 1e6)
        write_inputs(Path(folder), samples)
        for case in CASES:
            row = run_case(Path(folder) / case)
            print(
                f"{case:18}{row['samples']:>13,} samples {row['tokens']:>16,} tokens {row['s']:7.2f} s "
                f"({row['cpu_s']:.2f} s CPU, {raw_read_s(Path(folder) / case):.2f} s to read the bytes alone) "
                f"{row['peak_gib']:5.2f} GiB peak"
            )
        print(f"targets for 100 million lengths: {TARGET_S} s, {TARGET_GIB} GiB")
        compare_parsers(Path(folder) / CASES[0])


if __name__ == "__main__":
    main()
