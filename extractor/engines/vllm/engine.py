"""The vLLM engine: exact token ids in, one output token, hidden states taken on the ranks by `worker.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch.distributed as dist
import vllm
from pydantic import ValidationError
from vllm import SamplingParams
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from extractor.config import Config
from extractor.engines.job import Job, Progress, StopFlag, rank_error_file
from extractor.engines.vllm.environment import prepare_cpu
from extractor.engines.vllm.settings import engine_config
from extractor.errors import EngineError, ExtractorError
from extractor.samples import Sample

CHECKED_VERSIONS = ("0.32.0",)
# On a GPU asking the ranks lets the steps in flight run out.
_STATUS_SECONDS = 1.0 if current_platform.is_cpu() else 3.0
_SEAL_SECONDS = 60.0


class VllmEngine:
    """One vLLM engine; runs follow one another."""

    def __init__(self, config: Config, longest: int) -> None:
        """`longest`: tokens of the longest sample. Raises EngineError when vLLM can't run this model here."""
        _check_version(config.allow_untested_engine)
        _require_no_group()
        if current_platform.is_cpu():
            prepare_cpu(config.tp)
        self._config = config
        try:
            self._engine = LLMEngine.from_vllm_config(engine_config(config, longest))
        except ExtractorError:
            raise
        except Exception as error:
            raise EngineError(
                f"vLLM could not load {config.model}: {_told(error)}; its messages above say more; if the model does "
                "not fit here try --engine transformers"
            ) from error

    def run(
        self, job: Job, samples: Iterator[Sample], report: Callable[[Progress], None], stop: StopFlag
    ) -> list[dict[str, Any]]:
        """See `Engine.run`."""
        try:
            self._engine.collective_rpc("extractor_start", args=(job.as_dict(),))
            self._feed(job, samples, report, stop)
            return list(self._engine.collective_rpc("extractor_finish"))
        except Exception as error:
            self._seal_what_is_whole()
            if isinstance(error, ExtractorError):
                raise
            raise EngineError(_reason(job, self._config.tp, error)) from error

    def close(self) -> None:
        """Stop the ranks. Idempotent."""
        self._engine.engine_core.shutdown()

    def _seal_what_is_whole(self) -> None:
        """On the ranks that can. Why one can't is known: it is what ends the run."""
        with suppress(Exception):
            self._engine.collective_rpc("extractor_finish", timeout=_SEAL_SECONDS)

    def _feed(self, job: Job, samples: Iterator[Sample], report: Callable[[Progress], None], stop: StopFlag) -> None:
        """Keep the engine supplied, a bounded number of samples at a time, until all are done or `stop`."""
        waiting: Sample | None = next(samples, None)
        last_report = time.monotonic()
        while not stop() and (waiting is not None or self._engine.has_unfinished_requests()):
            while waiting is not None and self._engine.get_num_unfinished_requests() < self._config.max_in_flight:
                self._add(waiting)
                waiting = next(samples, None)
            self._engine.step()
            _raise_rank_failure(job, self._config.tp)
            if time.monotonic() - last_report > _STATUS_SECONDS:
                report(Progress.of_ranks(self._engine.collective_rpc("extractor_status")))
                last_report = time.monotonic()

    def _add(self, sample: Sample) -> None:
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            detokenize=False,
            extra_args={
                "extractor_sample_id": sample.sample_id,
                "extractor_loss_mask": np.packbits(sample.loss_mask).tobytes().hex(),
            },
        )
        self._engine.add_request(sample.sample_id, {"prompt_token_ids": sample.token_ids.tolist()}, params)


def _told(error: Exception) -> str:
    """What vLLM found wrong with its settings, without how pydantic presents it."""
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(found["msg"].removeprefix("Value error, ") for found in error.errors(include_url=False))


def _check_version(allow_untested: bool) -> None:
    if vllm.__version__.split("+")[0] not in CHECKED_VERSIONS and not allow_untested:
        raise EngineError(
            f"vLLM {vllm.__version__} was not checked with this extractor; checked: {', '.join(CHECKED_VERSIONS)}; "
            "install one of these, or pass --allow-untested-engine and verify the store with --reference"
        )


def _require_no_group() -> None:
    if dist.is_available() and dist.is_initialized():
        raise EngineError(
            "torch.distributed is initialized in this process; vLLM would take its ranks for its own, wait for them, "
            "and destroy the group in the end; call extractor.launch.extract_on_ranks, which gives vLLM a process of "
            "its own, or extract before init_process_group"
        )


def _raise_rank_failure(job: Job, tp: int) -> None:
    words = _words_of_a_rank(job, tp)
    if words:
        raise EngineError(words)


def _words_of_a_rank(job: Job, tp: int) -> str:
    for rank in range(tp):
        file = rank_error_file(job, rank)
        if file.is_file():
            return f"rank {rank} stopped: {file.read_text()}" if tp > 1 else file.read_text()
    return ""


def _reason(job: Job, tp: int, error: Exception) -> str:
    """The ranks' own words where they left any, else vLLM's."""
    return _words_of_a_rank(job, tp) or (
        f"the engine stopped: {type(error).__name__}: {error}; a rank may have been killed (out of memory?); what is "
        "sealed is safe; run the same command again to continue"
    )
