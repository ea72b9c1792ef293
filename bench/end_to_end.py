"""What do capture and store add to vLLM's prefill, and how do other dumps of the same samples do?

    pytest bench/end_to_end.py -s

SmolLM2-135M in float32 on a CPU (elsewhere vLLM's own dtype), layers 2, 15, 27 as fp16, `extract`'s defaults. One
engine start; bare and captured prefill take turns. Bare means nothing attached: no hidden states returned, no code of
ours in a step. Captured ends after the last fsync; what a run allocates once, at its start, is shown in the split and
not part of the ratio. On a GPU with CUDA graphs the captured tensors are part of the graph and can't be taken away:
there the bare run still returns them. vLLM's own connector can't run on a CPU; its files are in store_write.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from peer_dumps import HuggingFace, padding
from prefill import Prefill, prefill_config
from settings import DISK, TOY, size
from timing import Variant, compare, keep, side_by_side
from tiny_model import VOCAB, save_tiny_llama

from extractor.benchmarks.table import Range, Table
from extractor.errors import ExtractorError
from extractor.layers import resolve_layers
from extractor.model_info import ModelInfo
from extractor.samples import SamplesFile, write_samples

ROUNDS = size(15, toy=1)
PEER_ROUNDS = 3
BATCH = 8
LENGTHS = np.random.default_rng(0).lognormal(np.log(size(110, toy=20)), 0.7, 8).clip(8, size(512, toy=60)).astype(int)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="extractor-bench-", dir=DISK) as path:
        yield Path(path)


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    from extractor.demo.model import demo_model_dir

    if TOY:
        return save_tiny_llama(folder / "model")
    try:
        return demo_model_dir()
    except ExtractorError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def samples(folder: Path, model: Path) -> SamplesFile:
    rng = np.random.default_rng(1)
    vocab = VOCAB if TOY else ModelInfo.from_dir(model).vocab_size
    file = folder / "samples.parquet"
    rows = [{"sample_id": f"s{n}", "input_ids": rng.integers(0, vocab, size)} for n, size in enumerate(LENGTHS)]
    write_samples(file, rows)
    return SamplesFile(file)


@pytest.fixture(scope="module")
def prefill(folder: Path, model: Path, samples: SamplesFile) -> Iterator[Prefill]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    engine = Prefill(prefill_config(samples.path, model, folder / "store"))
    yield engine
    engine.close()


def work(samples: SamplesFile) -> str:
    return f"{len(samples)} samples of {LENGTHS.min()} to {LENGTHS.max()} tokens, {samples.num_tokens:,} in all"


BARE, CAPTURED = "vLLM prefill, nothing attached", "vLLM prefill + capture + store"


def test_added_to_prefill(benchmark, prefill, samples):
    """The ratio decides by rounds: each captured prefill beside the bare one of the same round."""
    calls = {BARE: prefill.bare, CAPTURED: prefill.captured}
    before = {BARE: prefill.detach, CAPTURED: prefill.attach}
    seconds = benchmark.pedantic(lambda: side_by_side(calls, ROUNDS, warmup=1, before=before), rounds=1)
    added = Range.of([own / bare - 1 for bare, own in zip(seconds[BARE], seconds[CAPTURED], strict=True)])
    remark = f"Added by capture and store: {added.median:+.1%} [{added.low:+.1%}, {added.high:+.1%}]."
    fields = {"baseline": BARE, "work": samples.num_tokens, "rate_unit": "tokens/s", "remark": remark}
    keep(benchmark, Table.of_rounds(f"end to end: {work(samples)}", seconds, **fields))
    keep(benchmark, split(prefill, seconds))


def split(prefill: Prefill, seconds: dict[str, list[float]]) -> Table:
    """Where the time of both goes; the first call of each was a warm-up."""
    parts = {name: values[1:] for name, values in prefill.split.items()}
    walls = {name: seconds[BARE if name.startswith("bare") else CAPTURED] for name in parts}
    shares = {
        name: {"share of wall": f"{Range.of([a / b for a, b in zip(values, walls[name], strict=True)]).median:.1%}"}
        for name, values in parts.items()
    }
    parts["once a run: open ring and shard"] = prefill.open_seconds[1:]
    return Table.of_rounds(
        "end to end: where the time goes, engine's thread unless said otherwise", parts, extra=shares
    )


def ours(prefill: Prefill) -> Variant:
    note = "fp16, counted and checked, checksums, durable, resumable"
    return Variant(prefill.captured, f"3 layers, {note}", prefill.attach)


def dump(folder: Path, note: str, write: Callable[[Path], object]) -> Variant:
    out = folder / "peer"

    def before() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.sync()

    return Variant(lambda: write(out), note, before)


def test_peers(benchmark, folder, model, samples, prefill):
    """Other dumps of the same samples. Compute threads: as vLLM leaves them, all cores."""
    info = ModelInfo.from_dir(model)
    layers = resolve_layers("eagle3", info.num_layers, False)
    peer, given = HuggingFace(model, layers), list(samples)
    waste = f"{padding(given, BATCH):.2f}x the tokens are computed and stored"
    files = "3 layers, bf16, no fsync, no checksum, no resume"
    variants = {
        BARE: Variant(prefill.bare, "stores nothing", prefill.detach),
        CAPTURED: ours(prefill),
        "Hugging Face, nothing attached": Variant(
            partial(peer.bare, given), "stores nothing; batch 1, logits included"
        ),
        "Hugging Face, torch.save a sample": dump(folder, files, partial(peer.one_by_one, given)),
        f"padded batches of {BATCH}, torch.save": dump(
            folder, f"{waste}; {files}", lambda out: peer.padded(given, out, BATCH)
        ),
    }
    title = f"dumps: {work(samples)}"
    compare(benchmark, title, variants, rounds=PEER_ROUNDS, work=samples.num_tokens, rate_unit="tokens/s", threads=None)
