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

# Their forward passes can't return id 0: DeepSeek-V2's adds a residual that does not exist yet, the Transformers
# backend looks for the layer before the first. In both the embedding module's output is what enters layer 0.
_NO_ID_0 = {
    "DeepseekV2Model",
    "TransformersForCausalLM",
    "TransformersMoEForCausalLM",
    "TransformersMultiModalForCausalLM",
    "TransformersMultiModalMoEForCausalLM",
}


# Their layers divide what they add, in fp16, by `routed_scaling_factor`; the norms that follow do not mind.
_SCALED_IN_FP16 = {"DeepseekV2DecoderLayer", "AXK1DecoderLayer"}


@dataclass(frozen=True, slots=True)
class StepView:
    """One forward pass of N rows. `layers`: one tensor [N, H] per layer id, ascending, without the graph's padding.
    `order`: (request id, rows) in row order. `token_ids` [N] int32 or None where reading them would wait for a GPU."""

    layers: list[torch.Tensor]
    order: list[tuple[str, int]]
    token_ids: np.ndarray | None


class RunnerView:
    """Reads the steps of one model runner."""

    def __init__(self, runner: Any, layer_ids: tuple[int, ...]) -> None:
        """Make the model return the residual streams `layer_ids` (any order). Must run before warm-up and graph
        capture: graphs captured earlier would not return them. Raises EngineError for a model that can't."""
        self._runner = runner
        self._model = runner.get_model()
        if not supports_eagle3(self._model):
            raise EngineError(
                f"{type(self._model).__name__} can't return hidden states of chosen layers in this vLLM; use "
                "--engine transformers"
            )
        _refuse_scaled_states(self._model)
        self._embeds = 0 in layer_ids and _cannot_return_id_0(self._model)
        captured = tuple(sorted(layer_id for layer_id in layer_ids if layer_id or not self._embeds))
        if captured:
            _forget_earlier_layers(self._model)
            self._model.set_aux_hidden_state_layers(captured)
        runner.use_aux_hidden_state_outputs = bool(captured)

    def step(self, scheduler_output: Any) -> StepView | None:
        """The step that `execute_model` has just run, or None when it computed nothing."""
        state = self._runner.execute_model_state
        if scheduler_output.total_num_scheduled_tokens == 0 or state is None:
            return None
        # V2 hands the step's batch over in the state; V1 keeps one persistent batch on the runner.
        is_v2 = hasattr(state, "input_batch")
        batch = (state if is_v2 else self._runner).input_batch
        planned = scheduler_output.num_scheduled_tokens
        if set(batch.req_ids) != set(planned) or len(batch.req_ids) != len(planned):
            raise EngineError(
                f"the runner's batch holds {len(batch.req_ids)} requests, the scheduler planned {len(planned)} or "
                "others; this vLLM builds its batch in a way this extractor does not know; use a checked version"
            )
        order = [(request_id, planned[request_id]) for request_id in batch.req_ids]
        rows = sum(count for _, count in order)
        layers = [states[:rows] for states in state.aux_hidden_states or ()]
        if self._embeds:
            ids = state.input_batch.input_ids if is_v2 else self._runner.input_ids.gpu
            layers.insert(0, self._embed(ids[:rows]))
        token_ids = None if is_v2 else self._runner.input_ids.cpu[:rows].numpy()
        return StepView(layers, order, token_ids)

    @torch.inference_mode()
    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[rows, H]. All ranks of a tensor-parallel group call it: each holds a part of the vocabulary."""
        embedded: torch.Tensor = self._model.embed_input_ids(token_ids)
        return embedded


def _cannot_return_id_0(model: torch.nn.Module) -> bool:
    return any(_is_a(module, _NO_ID_0) for module in model.modules())


def _is_a(module: torch.nn.Module, names: set[str]) -> bool:
    return any(base.__name__ in names for base in type(module).__mro__)


def _refuse_scaled_states(model: torch.nn.Module) -> None:
    """Raise EngineError where vLLM divides the residual stream by a constant, so that it fits into fp16."""
    in_fp16 = any(parameter.dtype == torch.float16 for parameter in model.parameters())
    for layer in model.modules() if in_fp16 else ():
        scale = getattr(layer, "routed_scaling_factor", 1.0)
        if _is_a(layer, _SCALED_IN_FP16) and scale != 1.0:
            raise EngineError(
                f"in float16 vLLM divides the hidden states of {type(model).__name__} by {scale}, and they would be "
                "stored so; use --compute-dtype bfloat16"
            )


def _forget_earlier_layers(model: torch.nn.Module) -> None:
    """vLLM's Transformers backend notes the layers to return in a dict of the model's class, which outlives an engine:
    a second one in this process would get its layers in the order of the first one's, and no error."""
    noted = getattr(getattr(model, "model", None), "_can_record_outputs", None) or {}
    for key in [key for key in noted if key.startswith("aux_hidden_state_")]:
        del noted[key]
