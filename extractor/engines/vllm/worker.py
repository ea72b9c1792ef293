"""The worker class that vLLM runs on each tensor-parallel rank: a stock worker that hands over its hidden states."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.distributed.parallel_state import get_tp_group
from vllm.platforms import current_platform

from extractor.engines.job import Job, rank_error_file
from extractor.engines.vllm.handover import Handover
from extractor.engines.vllm.runners import RunnerView
from extractor.errors import EngineError, ExtractorError

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as BaseWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as BaseWorker


class ExtractorWorker(BaseWorker):  # type: ignore[misc]
    """`additional_config["extractor_layer_ids"]` names the layers: vLLM hashes that dict into its compile cache's key,
    so that a graph compiled for other layers is never reused."""

    _handover: Handover | None = None

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        result = super().load_model(*args, **kwargs)
        if multiprocessing.parent_process() is not None:
            # A terminal's Ctrl-C reaches every process of the group; only the driver may act on it, or the ranks
            # would die with samples in their rings.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        layer_ids = tuple(self.vllm_config.additional_config["extractor_layer_ids"])
        self._runner_view = RunnerView(self.model_runner, layer_ids)
        return result

    def execute_model(self, scheduler_output: Any) -> Any:
        output = super().execute_model(scheduler_output)
        if self._handover is not None:
            with self._reasons():
                self._handover.step(scheduler_output)
        return output

    def extractor_start(self, job: dict[str, Any]) -> None:
        """Called on every rank, once for each run of the engine."""
        self._job = Job.from_dict(job)
        group = get_tp_group()
        self._rank = group.rank_in_group
        self._handover = Handover(self._runner_view, self._job, self._rank, group.world_size, self.device)

    def extractor_status(self) -> dict[str, Any]:
        return self._running().status()

    def extractor_finish(self) -> dict[str, Any]:
        """Seal what is whole and close this rank's shard."""
        handover = self._running()
        self._handover = None
        with self._reasons():
            return handover.finish()

    def _running(self) -> Handover:
        if self._handover is None:
            raise EngineError("no extraction is running on this rank; call extractor_start first")
        return self._handover

    @contextmanager
    def _reasons(self) -> Iterator[None]:
        """vLLM replaces a rank's exception by its own on the way to the driver: the reason travels in a file."""
        try:
            yield
        except Exception as error:
            text = str(error) if isinstance(error, ExtractorError) else traceback.format_exc()
            rank_error_file(self._job, self._rank).write_text(text)
            raise
