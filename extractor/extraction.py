"""`extract`: from a samples file to a store, whatever was stored before."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from extractor import __version__
from extractor.config import Config
from extractor.disk import RoomWatch, require_room
from extractor.engines.job import Engine, Job, Progress
from extractor.engines.load import engine_class, engine_version
from extractor.errors import EngineError, InputError
from extractor.layers import CONVENTION, resolve_layers
from extractor.manifest import Manifest
from extractor.model_info import ModelInfo
from extractor.samples import Sample, SamplesFile
from extractor.store import Store, prepare_store
from extractor.summary import Summary, nothing_to_do, summarize, write_run_record


def extract(config: Config, report: Callable[[Progress, int, int], None] | None = None) -> Summary:
    """Store the hidden states of every sample that the store does not hold yet.

    `report(progress, total_samples, total_tokens)` is called about once a second. Raises ExtractorError kinds; what
    is sealed by then stays, and the same call continues.
    """
    info, samples = _check_input(config)
    layer_ids = resolve_layers(config.layers, info.num_layers, config.last)
    manifest = _manifest(config, info, layer_ids, samples)
    todo = _remaining(samples, config.out, manifest)
    if not todo:
        return nothing_to_do(config.out, len(samples))
    job = _job(config, info, layer_ids, todo)
    require_room(config.out, job.expected_bytes, config.force)
    store = prepare_store(config.out, manifest)
    already = len(samples) - len(todo)
    (store.path / "runs").mkdir(exist_ok=True)
    engine = engine_class(config.engine)(config, int(samples.lengths.max()))
    try:
        return _run(engine, config, job, samples, todo, already, report)
    finally:
        engine.close()


def _check_input(config: Config) -> tuple[ModelInfo, SamplesFile]:
    info = ModelInfo.from_dir(config.model)
    info.require_weights()
    samples = SamplesFile(config.samples)
    longest = int(samples.lengths.argmax())
    if info.max_positions and samples.lengths[longest] > info.max_positions:
        raise InputError(
            f"sample {samples.sample_ids[longest]!r} has {samples.lengths[longest]} tokens; {info.name} reads at most "
            f"{info.max_positions}; cap the samples with `extractor prepare --max-length {info.max_positions}`"
        )
    samples.check_tokens(info.vocab_size)
    return info, samples


def _manifest(config: Config, info: ModelInfo, layer_ids: tuple[int, ...], samples: SamplesFile) -> Manifest:
    return Manifest(
        model_name=info.name,
        model_config_hash=info.config_hash,
        model_dtype=info.dtype,
        num_layers=info.num_layers,
        layer_ids=layer_ids,
        layer_convention=CONVENTION,
        hidden_size=info.hidden_size,
        dtype=config.dtype,
        codec=config.codec,
        tokenizer_hash=info.tokenizer_hash,
        samples_hash=samples.content_hash(),
        engine=config.engine,
        engine_version=engine_version(config.engine),
        extractor_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        options={"overflow": config.overflow, "compute_dtype": _compute_dtype(config, info)},
    )


def _compute_dtype(config: Config, info: ModelInfo) -> str:
    if config.compute_dtype != "auto":
        return config.compute_dtype
    import torch

    return info.dtype if torch.cuda.is_available() else "float32"


def _remaining(samples: SamplesFile, out: Path, manifest: Manifest) -> set[str]:
    """Sample ids that the store lacks. Looks before it creates, so that a refused run leaves nothing behind."""
    if not out.exists():
        return set(samples.sample_ids)
    stored = prepare_store(out, manifest)
    return {sample_id for sample_id in samples.sample_ids if sample_id not in stored}


def _job(config: Config, info: ModelInfo, layer_ids: tuple[int, ...], todo: set[str]) -> Job:
    samples = SamplesFile(config.samples)
    tokens = sum(int(n) for i, n in zip(samples.sample_ids, samples.lengths, strict=True) if i in todo)
    return Job(
        run_id=f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}",
        store=config.out,
        layer_ids=layer_ids,
        num_layers=info.num_layers,
        hidden_size=info.hidden_size,
        dtype=config.dtype,
        overflow=config.overflow,
        expected_bytes=tokens * 2 * len(layer_ids) * info.hidden_size,
        token_budget=config.token_budget,
    )


def _run(
    engine: Engine,
    config: Config,
    job: Job,
    samples: SamplesFile,
    todo: set[str],
    already: int,
    report: Callable[[Progress, int, int], None] | None,
) -> Summary:
    total_tokens = job.expected_bytes // job.row_bytes

    watch = RoomWatch(config.out)

    def tell(progress: Progress) -> None:
        watch.check(job.expected_bytes - progress.tokens * job.row_bytes)
        if report is not None:
            report(progress, len(todo), total_tokens)

    tell(Progress())
    started = time.monotonic()
    with _stop_on_interrupt() as stop:
        ranks = engine.run(job, _only(samples, todo), tell, stop)
        interrupted = stop()
    seconds = time.monotonic() - started
    tell(Progress.of_ranks(ranks))
    summary = summarize(config, job, ranks, seconds=seconds, already=already, interrupted=interrupted)
    write_run_record(config, job, summary)
    if not interrupted:
        _require_complete(config.out, todo)
    return summary


def _only(samples: SamplesFile, wanted: set[str]) -> Iterator[Sample]:
    return (sample for sample in samples if sample.sample_id in wanted)


@contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks the engine to stop after its step; the second raises KeyboardInterrupt."""
    asked: list[int] = []

    def handle(signum: int, _frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(signum)

    try:
        before = signal.signal(signal.SIGINT, handle)
    except ValueError:  # not the main thread: the embedding program handles signals
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


def _require_complete(out: Path, todo: set[str]) -> None:
    stored = Store.open(out)
    missing = sorted(sample_id for sample_id in todo if sample_id not in stored)
    if missing:
        raise EngineError(
            f"the engine ended without an error, but {len(missing)} samples are not stored, {missing[0]!r} for one; "
            "run the same command again; if it happens twice, please report it"
        )
