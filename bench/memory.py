"""Does a run's peak memory depend on how many samples it has?

    pytest bench/memory.py -s

Peak resident memory (VmHWM) of processes that do the same with few samples and with many. `extract`: the whole command
with a model of a few hundred kilobytes on the transformers engine. Pipeline: gather, ring and store with rows of
Kimi-K2.5's shape. The smaller run of each is large enough to fill every buffer.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from settings import DISK, size
from store_data import ROW_BYTES
from synthetic import Load
from timing import keep
from tiny_model import VOCAB, save_tiny_llama

from extractor.benchmarks.table import Table

EXTRACT_SAMPLES = size((1000, 6000), toy=(2, 4))
EXTRACT_TOKENS = 512
PIPELINE = size([Load(8, 4096, 2048), Load(32, 4096, 2048)], toy=[Load(1, 64, 64), Load(2, 64, 64)])

PEAK = """
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) / 1024)
"""
EXTRACT = """
import sys
from pathlib import Path
import torch
from extractor import Config, extract
torch.set_num_threads(1)
samples, model, out = map(Path, sys.argv[1:])
extract(Config(samples=samples, model=model, out=out, engine="transformers"))
"""
SYNTHETIC = """
import sys
from pathlib import Path
from synthetic import Load, Run, make_steps
load = Load(*map(int, sys.argv[2:]))
run = Run(Path(sys.argv[1]), load, make_steps(load))
run.prepare()
run.open()
run.write()
"""


def peak_mib(program: str, *arguments: object) -> float:
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n{program}{PEAK}"]
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return float(done.stdout.split()[-1])


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="extractor-bench-", dir=DISK) as path:
        yield Path(path)


def kept(benchmark, title: str, peaks: dict[str, float]) -> None:
    measured = {name: [peak] for name, peak in peaks.items()}
    few, many = peaks.values()
    remark = f"With more samples: {many - few:+,.0f} MiB ({many / few - 1:+.1%})."
    keep(benchmark, Table.of_rounds(title, measured, unit="MiB", remark=remark))


def test_extract(benchmark, folder):
    from extractor.samples import write_samples

    model = save_tiny_llama(folder / "model")

    def peak(count: int) -> float:
        ids = np.random.default_rng(0).integers(0, VOCAB, (count, EXTRACT_TOKENS))
        write_samples(
            folder / "samples.parquet", [{"sample_id": f"s{n}", "input_ids": one} for n, one in enumerate(ids)]
        )
        return peak_mib(EXTRACT, folder / "samples.parquet", model, folder / f"store-{count}")

    peaks = benchmark.pedantic(lambda: {f"{count:,} samples": peak(count) for count in EXTRACT_SAMPLES}, rounds=1)
    kept(benchmark, f"memory of extract, samples of {EXTRACT_TOKENS} tokens", peaks)


def test_pipeline(benchmark, folder):
    def peak(load: Load) -> float:
        return peak_mib(SYNTHETIC, folder / f"store-{load.samples}", load.samples, load.tokens, load.step_rows)

    peaks = benchmark.pedantic(lambda: {name(load): peak(load) for load in PIPELINE}, rounds=1)
    kept(benchmark, f"memory of gather + ring + store, {ROW_BYTES:,} bytes a token", peaks)


def name(load: Load) -> str:
    return f"{load.samples} samples, {load.nbytes / 1e9:.1f} GB"
