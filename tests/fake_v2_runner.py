"""vLLM's V2 model runner and scheduler as far as extraction sees them, after the source of vLLM 0.32.0.

What differs from the CPU's V1 runner, and is done here as there (`v1/worker/gpu/`):

    model_runner.py      a step's batch is a new object in `execute_model_state`, in an order of its own (decodes first,
                         then by number of tokens), which is not the scheduler's; `sample_tokens` clears the state
    cudagraph_utils.py   hidden states are views of buffers that persist and that the next replay overwrites; a graph's
                         batch is padded, and what the padding rows hold is left over
    scheduler.py         a preempted request is announced as a new one
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch
from vllm import SamplingParams
from vllm.model_executor.models.interfaces import EagleModelMixin, SupportsEagle3
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData

from extractor.samples import Sample

HIDDEN = 8
GARBAGE = 1234.0


def expected_rows(token_ids: np.ndarray, layer_id: int) -> np.ndarray:
    """[T, HIDDEN]: depend on the token, its whole prefix and the layer; integers below 2049, which fp16 holds. Layer 0,
    the embeddings, depends on the token alone."""
    seen = token_ids.astype(np.int64) * np.arange(1, token_ids.size + 1)
    prefix = np.cumsum(seen) % 251 if layer_id else np.zeros_like(seen)
    return np.stack([token_ids, -(prefix * 8 + layer_id)] * (HIDDEN // 2), axis=1).astype(np.float32)


class _Backbone(torch.nn.Module, EagleModelMixin):
    """Holds the layer ids that vLLM sets."""


class DeepseekV2Model(_Backbone):
    """By this name a model that can't return id 0."""


class FakeModel(torch.nn.Module, SupportsEagle3):
    def __init__(self, backbone: type[_Backbone] = _Backbone) -> None:
        super().__init__()
        self.model = backbone()

    def embed_input_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(expected_rows(token_ids.numpy(), 0))


class FakeV2Runner:
    """Computes `expected_rows` for the tokens of a step, into buffers that persist."""

    def __init__(self, max_tokens: int, model: FakeModel | None = None) -> None:
        self.model = model or FakeModel()
        self.use_aux_hidden_state_outputs = False
        self.execute_model_state: SimpleNamespace | None = None
        self._max_tokens = max_tokens
        self._tokens: dict[str, np.ndarray] = {}
        self._computed: dict[str, int] = {}
        self._buffers: list[torch.Tensor] = []

    def get_model(self) -> FakeModel:
        return self.model

    def execute_model(self, scheduler_output: SimpleNamespace) -> None:
        self._update(scheduler_output)
        planned = scheduler_output.num_scheduled_tokens
        if not planned:
            return
        order = sorted(planned, key=lambda request_id: (planned[request_id] > 1, planned[request_id], request_id))
        layer_ids = self.model.model.aux_hidden_state_layers
        if not self._buffers:
            self._buffers = [torch.full((self._max_tokens, HIDDEN), GARBAGE) for _ in layer_ids]
        padded = min(self._max_tokens, -(-sum(planned.values()) // 16) * 16)
        input_ids = torch.full((padded,), int(GARBAGE), dtype=torch.int32)
        row = 0
        for request_id in order:
            start, count = self._computed[request_id], planned[request_id]
            tokens = self._tokens[request_id][: start + count]
            for buffer, layer_id in zip(self._buffers, layer_ids, strict=True):
                buffer[row : row + count] = torch.from_numpy(expected_rows(tokens, layer_id)[start:])
            input_ids[row : row + count] = torch.from_numpy(tokens[start:])
            row += count
        self.execute_model_state = SimpleNamespace(
            input_batch=SimpleNamespace(req_ids=order, input_ids=input_ids),
            aux_hidden_states=[buffer[:padded] for buffer in self._buffers],
        )

    def sample_tokens(self) -> None:
        """The step is over: its state is gone and its buffers are free for the next one."""
        self.execute_model_state = None
        for buffer in self._buffers:
            buffer.fill_(GARBAGE)

    def _update(self, scheduler_output: SimpleNamespace) -> None:
        for request_id in scheduler_output.finished_req_ids:
            self._tokens.pop(request_id, None)
        for request in scheduler_output.scheduled_new_reqs:
            self._tokens[request.req_id] = np.asarray(request.prefill_token_ids, np.int32)
            self._computed[request.req_id] = request.num_computed_tokens
        cached = scheduler_output.scheduled_cached_reqs
        self._computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))


@dataclass
class FakeScheduler:
    """Plans steps of at most `budget` tokens over at most `max_running` requests; preempts now and then."""

    samples: list[Sample]
    budget: int
    max_running: int = 4
    preempt_every: int = 0
    seed: int = 0
    _running: dict[str, int] = field(default_factory=dict)  # request -> tokens computed
    _steps: int = 0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._by_id = {sample.sample_id: sample for sample in self.samples}
        self._waiting = deque(self._by_id)
        self._finished: set[str] = set()

    def steps(self):
        """SchedulerOutputs until all is done, and the empty one that tells of the last finished requests."""
        while self._waiting or self._running:
            self._steps += 1
            if self.preempt_every and self._steps % self.preempt_every == 0 and len(self._running) > 1:
                victim = list(self._running)[-1]
                del self._running[victim]
                self._waiting.appendleft(victim)
            yield self._plan()
        yield _output([], [], [], {}, self._finished)

    def _plan(self) -> SimpleNamespace:
        left, new, cached, planned = self.budget, [], [], {}
        finished, self._finished = self._finished, set()
        for request_id in list(self._running):
            cached.append(request_id)
            planned[request_id] = self._take(request_id, left)
            left -= planned[request_id]
        while self._waiting and len(planned) < self.max_running and left:
            request_id = self._waiting.popleft()
            self._running[request_id] = 0
            new.append(request_id)
            planned[request_id] = self._take(request_id, left)
            left -= planned[request_id]
        planned = {request_id: count for request_id, count in planned.items() if count}
        cached = [request_id for request_id in cached if request_id in planned]
        start = dict(self._running)
        for request_id, count in planned.items():
            self._running[request_id] += count
            if self._running[request_id] == self._by_id[request_id].token_ids.size:
                del self._running[request_id]
                self._finished.add(request_id)
        return _output(
            [_new_request(self._by_id[request_id]) for request_id in new],
            cached,
            [start[request_id] for request_id in cached],
            planned,
            finished,
        )

    def _take(self, request_id: str, left: int) -> int:
        remaining = self._by_id[request_id].token_ids.size - self._running[request_id]
        return int(min(remaining, left, self._rng.integers(1, self.budget + 1)))


def _new_request(sample: Sample) -> NewRequestData:
    token_ids = sample.token_ids.tolist()
    extra = {
        "extractor_sample_id": sample.sample_id,
        "extractor_loss_mask": np.packbits(sample.loss_mask).tobytes().hex(),
    }
    return NewRequestData(
        req_id=sample.sample_id,
        prompt_token_ids=token_ids,
        mm_features=[],
        sampling_params=SamplingParams(extra_args=extra),
        pooling_params=None,
        block_ids=(),
        num_computed_tokens=0,
        lora_request=None,
        prefill_token_ids=token_ids,
    )


def _output(
    new: list[NewRequestData], cached: list[str], computed: list[int], planned: dict[str, int], finished: set[str]
) -> SimpleNamespace:
    return SimpleNamespace(
        scheduled_new_reqs=new,
        scheduled_cached_reqs=CachedRequestData(
            req_ids=cached,
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[None] * len(cached),
            num_computed_tokens=computed,
            num_output_tokens=[0] * len(cached),
        ),
        num_scheduled_tokens=planned,
        total_num_scheduled_tokens=sum(planned.values()),
        finished_req_ids=finished,
    )
