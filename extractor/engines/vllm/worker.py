"""The worker class that vLLM runs on each tensor-parallel rank: a stock worker that hands over its hidden states."""

from __future__ import annotations

import logging
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
from extractor.store.disk import write_atomically

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as BaseWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as BaseWorker


log = logging.getLogger(__name__)


class ExtractorWorker(BaseWorker):  # type: ignore[misc]
    """`additional_config["extractor_layer_ids"]` names the layers: vLLM hashes that dict into its compile cache's key,
    so that a graph compiled for other layers is never reused."""

    _handover: Handover | None = None
    _failure = ""

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
            self._take_step(self._handover, scheduler_output)
        return output

    def extractor_start(self, job: dict[str, Any]) -> None:
        """Called on every rank, once for each run of the engine. Raises EngineError with what is missing here."""
        self._job = Job.from_dict(job)
        group = get_tp_group()
        self._rank = group.rank_in_group
        self._failure = ""
        with self._noted():
            self._handover = Handover(self._runner_view, self._job, self._rank, group.world_size, self.device)
        self._raise_failure()

    def extractor_status(self) -> dict[str, Any]:
        """Raises EngineError with what stopped this rank."""
        handover = self._running()
        self._raise_failure()
        return handover.status()

    def extractor_finish(self) -> dict[str, Any]:
        """Seal what is whole and close this rank's shard. Raises EngineError with what stopped this rank."""
        handover = self._running()
        self._handover = None
        status: dict[str, Any] = {}
        with self._noted():
            status = handover.finish()
        self._raise_failure()
        return status

    def shutdown(self) -> None:
        """Without `extractor_finish` before it when the engine failed."""
        handover, self._handover = self._handover, None
        if handover is not None:
            with self._noted():
                handover.close()
        super().shutdown()

    def _take_step(self, handover: Handover, scheduler_output: Any) -> None:
        """What goes wrong is kept for the driver instead of raised: with asynchronous scheduling vLLM drops what this
        raises, since it asks for the sampled tokens only, and without it only one rank's answer is read."""
        with self._noted():
            if self._failure:
                self._runner_view.step(scheduler_output)  # the other ranks wait in its collective
            else:
                handover.step(scheduler_output)

    def _running(self) -> Handover:
        if self._handover is None:
            raise EngineError("no extraction is running on this rank; call extractor_start first")
        return self._handover

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """The first failure is this rank's; a file tells the driver, which looks for one after each step."""
        try:
            yield
        except Exception as error:
            if self._failure:
                return
            self._failure = str(error) if isinstance(error, ExtractorError) else traceback.format_exc()
            try:
                write_atomically(rank_error_file(self._job, self._rank), self._failure)
            except OSError:  # a full disk, which may be what failed; the driver's next call is told
                log.warning("rank %d stopped: %s", self._rank, self._failure)

    def _raise_failure(self) -> None:
        if self._failure:
            raise EngineError(self._failure)
