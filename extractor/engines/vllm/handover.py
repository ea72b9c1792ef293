"""From vLLM's scheduler output and one forward pass to this rank's session."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from extractor.engines.job import Job
from extractor.engines.requests import RequestTracker
from extractor.engines.session import Session
from extractor.engines.vllm.runners import RunnerView, StepView
from extractor.errors import EngineError
from extractor.samples import Sample


class Handover:
    """One rank's run. Call `step` after each forward pass, whether or not this rank owns a row of it."""

    def __init__(self, view: RunnerView, job: Job, rank: int, num_ranks: int, device: torch.device) -> None:
        ascending = sorted(job.layer_ids)
        self._view = view
        self._job = job
        self._slots = [ascending.index(layer) for layer in job.layer_ids]
        self._tracker = RequestTracker(rank, num_ranks)
        self._session = Session(job, rank, device)

    def step(self, scheduler_output: Any) -> None:
        """Raises EngineError when the step is not what the scheduler planned, or rows of a sample are missing."""
        self._tracker.finish(scheduler_output.finished_req_ids)
        computed = self._begin_requests(scheduler_output)
        view = self._view.step(scheduler_output)
        if view is None:
            return
        self._check_layers(view)
        chunks = self._tracker.chunks(view.order, computed)
        self._session.step([view.layers[slot] for slot in self._slots], chunks, view.token_ids)

    def status(self) -> dict[str, Any]:
        """See `Session.status`."""
        return self._session.status()

    def finish(self) -> dict[str, Any]:
        """Seal what is whole and close this rank's shard."""
        return self._session.finish()

    def close(self) -> None:
        """Close this rank's shard; what is sealed stays."""
        self._session.close()

    def _begin_requests(self, scheduler_output: Any) -> dict[str, int]:
        """Announce new requests; returns how many tokens of each scheduled request were computed before this step."""
        computed: dict[str, int] = {}
        for request in scheduler_output.scheduled_new_reqs:
            computed[request.req_id] = request.num_computed_tokens
            sample = _sample_of(request)
            if sample is not None and self._tracker.begin(request.req_id, sample.sample_id, sample.token_ids.size):
                self._session.expect(sample)
        cached = scheduler_output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        return computed

    def _check_layers(self, view: StepView) -> None:
        want = len(self._job.layer_ids)
        if len(view.layers) != want:
            raise EngineError(
                f"the model returned {len(view.layers)} of {want} requested hidden states; layer ids "
                f"{list(self._job.layer_ids)}; this vLLM can't capture one of them for this model; choose other "
                "--layers or use --engine transformers"
            )
        rows = sum(count for _, count in view.order)
        for layer in view.layers:
            if layer.shape[0] < rows or layer.shape[1] != self._job.hidden_size:
                raise EngineError(
                    f"a captured layer has shape {list(layer.shape)}, expected at least {rows} rows of "
                    f"{self._job.hidden_size}; the model is sharded in a way that is not supported here"
                )


def _sample_of(request: Any) -> Sample | None:
    """The sample that travels with a request; its ids are the ones the engine scheduled. None for foreign requests."""
    extra = request.sampling_params.extra_args if request.sampling_params is not None else None
    if not extra or "extractor_sample_id" not in extra:
        return None
    token_ids = np.asarray(request.prompt_token_ids, np.int32)
    packed = np.frombuffer(bytes.fromhex(extra["extractor_loss_mask"]), np.uint8)
    loss_mask = np.unpackbits(packed, count=token_ids.size)
    return Sample(extra["extractor_sample_id"], token_ids, loss_mask)
