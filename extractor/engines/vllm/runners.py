"""The only code that touches a vLLM model runner.

Read against vLLM 0.32.0: `v1/worker/gpu_model_runner.py` (V1 runner; the CPU's runner derives from it) and
`v1/worker/gpu/model_runner.py` (V2 runner, the default on GPUs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.model_executor.models.interfaces import supports_eagle3

from extractor.errors import EngineError


@dataclass(frozen=True, slots=True)
class StepView:
    """One forward pass. `layers`: one tensor [N, H] per layer id, ascending, N >= sum of rows (padding at the end).
    `order`: (request id, rows) in row order. `token_ids` [N] int32 or None where reading them would wait for a GPU."""

    layers: list[torch.Tensor]
    order: list[tuple[str, int]]
    token_ids: np.ndarray | None


def enable_capture(runner: Any, layer_ids: tuple[int, ...]) -> None:
    """Make the model return the residual streams `layer_ids` (any order). Must run before warm-up and graph capture:
    graphs captured earlier would not return them."""
    model = runner.get_model()
    if not supports_eagle3(model):
        raise EngineError(
            f"{type(model).__name__} can't return hidden states of chosen layers in this vLLM; use "
            "--engine transformers"
        )
    model.set_aux_hidden_state_layers(tuple(sorted(layer_ids)))
    runner.use_aux_hidden_state_outputs = True


def view_step(runner: Any, scheduler_output: Any) -> StepView | None:
    """The step that `execute_model` has just run, or None when it computed nothing."""
    state = runner.execute_model_state
    if scheduler_output.total_num_scheduled_tokens == 0 or state is None:
        return None
    # V2 hands the step's batch over in the state; V1 keeps one persistent batch on the runner.
    is_v2 = hasattr(state, "input_batch")
    request_ids = (state if is_v2 else runner).input_batch.req_ids
    order = [(request_id, scheduler_output.num_scheduled_tokens[request_id]) for request_id in request_ids]
    rows = sum(count for _, count in order)
    if rows != scheduler_output.total_num_scheduled_tokens:
        raise EngineError(
            f"the runner's batch holds {rows} rows, the scheduler planned "
            f"{scheduler_output.total_num_scheduled_tokens}; this vLLM version orders its batch in a way this "
            "extractor does not know; use a checked version"
        )
    token_ids = None if is_v2 else runner.input_ids.cpu[:rows].numpy()
    return StepView(list(state.aux_hidden_states or ()), order, token_ids)
