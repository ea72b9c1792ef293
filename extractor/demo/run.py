"""The demo: every command of the main job, in order, on a small real model and a corpus of our own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from extractor.config import Config
from extractor.demo.corpus import write_corpus
from extractor.demo.model import demo_model_dir
from extractor.errors import ExtractorError
from extractor.extraction import extract
from extractor.progress import ProgressDisplay
from extractor.shell import shell_command
from extractor.store import Store
from extractor.summary import Summary
from extractor.verify import ReferenceReport, verify_reference


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo found: the extraction's summary and the comparison of every sample with transformers."""

    summary: Summary
    reference: ReferenceReport


def run_demo(out: Path, engine: str, model: Path | None = None) -> DemoResult:
    """Corpus -> samples -> plan -> store -> comparison, under `out`. What is there already is not computed again."""
    model = model or demo_model_dir()
    out.mkdir(parents=True, exist_ok=True)
    corpus, samples, store = out / "conversations.jsonl", out / "samples" / "samples.parquet", out / "store"
    write_corpus(corpus)
    _command("prepare", corpus, "--tokenizer", model, "--out", samples.parent)
    _command("plan", samples, "--model", model, "--last", "--out", store, "--look", out)
    _announce("extract", samples, "--model", model, "--out", store, "--last", "--engine", engine)
    with ProgressDisplay() as display:
        config = Config(samples=samples, model=model, out=store, last=True, engine=engine)
        summary = extract(config, display.update)
    sealed = Store.open(store)
    _command("verify", store)
    _announce("verify", store, "--reference", model, "--samples", len(sealed))
    return DemoResult(summary, verify_reference(sealed, model, len(sealed)))


def print_result(result: DemoResult) -> None:
    """One table on stdout."""
    table = Table(show_header=False, title="demo", title_justify="left")
    table.add_column()
    table.add_column(justify="right", overflow="fold")
    for name, value in result_rows(result):
        table.add_row(name, value)
    Console().print(table)
    print(f"store {result.summary.store}")  # not in the table, whose columns would fold it
    print(verdict(result))


def verdict(result: DemoResult) -> str:
    """The last line: whether it worked, in words."""
    if not result.reference.ok:
        return "the demo failed: values differ from transformers' by more than rounding explains; please report it"
    samples = len(result.reference.samples)
    return f"the demo worked: every value of all {samples} samples agrees with what transformers computes"


def result_rows(result: DemoResult) -> list[tuple[str, str]]:
    """(name, value): what a newcomer wants to see at the end."""
    summary, store = result.summary, Store.open(result.summary.store)
    layers = result.reference.layers
    worst = max((layer for layer in layers), key=lambda layer: layer.max_rel)
    peak = max(float(sample.stats["max_abs"].max()) for sample in store.values())
    return [
        ("samples", f"{len(store):,}"),
        ("tokens", f"{sum(len(sample.token_ids) for sample in store.values()):,}"),
        ("tokens/s", f"{summary.tokens_per_s:,.0f}" if summary.tokens else "stored before"),
        ("bytes per token", f"{store.manifest.row_bytes:,}"),
        ("layer ids", ", ".join(map(str, store.manifest.layer_ids))),
        ("saturated values", f"{sum(int(sample.stats['saturated'].sum()) for sample in store.values()):,}"),
        ("largest |x|", f"{peak:,.1f}"),
        ("values compared with transformers", f"{sum(layer.elements for layer in layers):,}"),
        ("beyond tolerance", f"{sum(layer.beyond_tolerance for layer in layers):,}"),
        ("largest relative error", f"{worst.max_rel:.2e} (layer {worst.layer_id}; fp16 rounding alone: 4.88e-04)"),
    ]


def _command(name: str, *arguments: object) -> None:
    """Print the command line and run it in this process. Raises what it raises, and ExtractorError when it fails."""
    from extractor.cli import run_command

    code = run_command(_announce(name, *arguments))
    if code not in (0, 3):
        raise ExtractorError(f"`extractor {name}` ended with exit code {code}; its findings stand above")


def _announce(name: str, *arguments: object) -> Sequence[str]:
    argv = [name, *map(str, arguments)]
    print(f"\n$ extractor {shell_command(*argv)}", file=sys.stderr, flush=True)
    return argv
