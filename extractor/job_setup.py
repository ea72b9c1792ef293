"""What a run is about, before any engine starts: checked input, the store's identity, the job."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from pathlib import Path

from extractor import __version__
from extractor.config import Config
from extractor.disk import store_bytes
from extractor.engines.compute_dtype import compute_dtype
from extractor.engines.engine_args import arguments_that_change_values, parse_engine_args
from extractor.engines.job import Job
from extractor.engines.load import engine_version
from extractor.engines.tensor_parallel import require_split
from extractor.errors import InputError
from extractor.layers import CONVENTION
from extractor.manifest import Manifest, Option
from extractor.model_info import ModelInfo
from extractor.samples import SamplesFile
from extractor.sizes import counted
from extractor.store import Store
from extractor.weights import weights_hash


def check_input(config: Config) -> tuple[ModelInfo, SamplesFile]:
    info = ModelInfo.from_dir(config.model)
    info.require_weights()
    if config.engine == "vllm":
        require_split(info, config.tp)
    samples = SamplesFile(config.samples)
    longest = int(samples.lengths.argmax())
    if info.max_positions and samples.lengths[longest] > info.max_positions:
        raise InputError(
            f"sample {samples.sample_ids[longest]!r} has {counted(samples.lengths[longest], 'token')}; {info.name} "
            "reads at most "
            f"{info.max_positions}; cap the samples with `extractor prepare --max-length {info.max_positions}`"
        )
    samples.check_tokens(info.vocab_size)
    return info, samples


def make_manifest(config: Config, info: ModelInfo, layer_ids: tuple[int, ...], samples: SamplesFile) -> Manifest:
    manifest = Manifest(
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
        options=_options(config, info),
    )
    return manifest.continuing(config.out)


def _options(config: Config, info: ModelInfo) -> dict[str, Option]:
    options: dict[str, Option] = {
        "overflow": config.overflow,
        "compute_dtype": compute_dtype(config.compute_dtype, info.dtype),
        "model_weights_hash": weights_hash(info.path),
    }
    engine_args = arguments_that_change_values(parse_engine_args(config.engine_args))
    return {**options, "engine_args": json.dumps(engine_args)} if engine_args else options


def disk_bytes(job: Job, samples: int) -> int:
    """An upper bound of what the job's `samples` samples will occupy. A codec counts where the store already shows what
    it saves on this model's states."""
    coded = round(job.expected_bytes * _coded_share(job.store))
    return store_bytes(samples, job.expected_bytes // job.row_bytes, coded)


def _coded_share(out: Path) -> float:
    """Stored bytes of the rows in a store / what they are without its codec; 1 where there are none yet."""
    if not out.exists():
        return 1.0
    store = Store.quietly(out)
    raw = int(store.lengths.sum()) * store.manifest.row_bytes
    return int(store.stored_bytes.sum()) / raw if raw else 1.0


def make_job(config: Config, info: ModelInfo, layer_ids: tuple[int, ...], todo: set[str]) -> Job:
    samples = SamplesFile(config.samples)
    tokens = sum(int(n) for i, n in zip(samples.sample_ids, samples.lengths, strict=True) if i in todo)
    return Job(
        run_id=f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}",
        store=config.out,
        layer_ids=layer_ids,
        num_layers=info.num_layers,
        hidden_size=info.hidden_size,
        dtype=config.dtype,
        overflow=config.overflow,
        expected_bytes=tokens * 2 * len(layer_ids) * info.hidden_size,
        token_budget=config.token_budget,
        commit_seconds=config.commit_seconds,
    )
