"""The worker class that vLLM runs on each tensor-parallel rank: a stock worker that hands over its hidden states."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from vllm.distributed.parallel_state import get_tp_group
from vllm.platforms import current_platform

from extractor.engines.job import Job, rank_error_file
from extractor.engines.requests import RequestTracker
from extractor.engines.session import Session
from extractor.engines.vllm.runners import RunnerView, StepView
from extractor.errors import EngineError, ExtractorError
from extractor.samples import Sample

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as BaseWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as BaseWorker


class ExtractorWorker(BaseWorker):  # type: ignore[misc]
    """`additional_config["extractor_layer_ids"]` names the layers: vLLM hashes that dict into its compile cache's key,
    so that a graph compiled for other layers is never reused."""

    _session: Session | None = None

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
        if self._session is not None:
            with self._reasons():
                self._hand_over(scheduler_output)
        return output

    def extractor_start(self, job: dict[str, Any]) -> None:
        """Called on every rank once the engine is up."""
        self._job = Job.from_dict(job)
        group = get_tp_group()
        self._rank = group.rank_in_group
        ascending = sorted(self._job.layer_ids)
        self._slots = [ascending.index(layer) for layer in self._job.layer_ids]
        self._tracker = RequestTracker(self._rank, group.world_size)
        self._session = Session(self._job, self._rank, self.device)

    def extractor_status(self) -> dict[str, Any]:
        return self._open_session().status()

    def extractor_finish(self) -> dict[str, Any]:
        """Seal what is whole and close this rank's shard."""
        session = self._open_session()
        self._session = None
        with self._reasons():
            return session.finish()

    def _open_session(self) -> Session:
        if self._session is None:
            raise EngineError("no extraction is running on this rank; call extractor_start first")
        return self._session

    def _hand_over(self, scheduler_output: Any) -> None:
        session = self._open_session()
        self._tracker.finish(scheduler_output.finished_req_ids)
        computed = self._begin_requests(scheduler_output, session)
        view = self._runner_view.step(scheduler_output)
        if view is None:
            return
        self._check_layers(view)
        chunks = self._tracker.chunks(view.order, computed)
        session.step([view.layers[slot] for slot in self._slots], chunks, view.token_ids)

    def _begin_requests(self, scheduler_output: Any, session: Session) -> dict[str, int]:
        """Announce new requests; returns how many tokens of each scheduled request were computed before this step."""
        computed: dict[str, int] = {}
        for request in scheduler_output.scheduled_new_reqs:
            computed[request.req_id] = request.num_computed_tokens
            sample = _sample_of(request)
            if sample is not None and self._tracker.begin(request.req_id, sample.sample_id, sample.token_ids.size):
                session.expect(sample)
        cached = scheduler_output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        return computed

    def _check_layers(self, view: StepView) -> None:
        want = len(self._job.layer_ids)
        if len(view.layers) != want:
            raise EngineError(
                f"{type(self.model_runner.get_model()).__name__} returned {len(view.layers)} of {want} requested "
                f"hidden states; layer ids {list(self._job.layer_ids)}; this vLLM can't capture one of them for this "
                "model; choose other --layers or use --engine transformers"
            )
        rows = sum(count for _, count in view.order)
        for layer in view.layers:
            if layer.shape[0] < rows or layer.shape[1] != self._job.hidden_size:
                raise EngineError(
                    f"a captured layer has shape {list(layer.shape)}, expected at least {rows} rows of "
                    f"{self._job.hidden_size}; the model is sharded in a way that is not supported here"
                )

    @contextmanager
    def _reasons(self) -> Iterator[None]:
        """vLLM replaces a rank's exception by its own on the way to the driver: the reason travels in a file."""
        try:
            yield
        except Exception as error:
            text = str(error) if isinstance(error, ExtractorError) else traceback.format_exc()
            rank_error_file(self._job, self._rank).write_text(text)
            raise


def _sample_of(request: Any) -> Sample | None:
    """The sample that travels with a request; its ids are the ones the engine scheduled. None for foreign requests."""
    extra = request.sampling_params.extra_args if request.sampling_params is not None else None
    if not extra or "extractor_sample_id" not in extra:
        return None
    token_ids = np.asarray(request.prompt_token_ids, np.int32)
    packed = np.frombuffer(bytes.fromhex(extra["extractor_loss_mask"]), np.uint8)
    loss_mask = np.unpackbits(packed, count=token_ids.size)
    return Sample(extra["extractor_sample_id"], token_ids, loss_mask)
