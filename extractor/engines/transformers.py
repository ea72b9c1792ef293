"""The Transformers engine: the same job in one process, and the reference that `verify` compares with."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModel

from extractor.capture import Chunk
from extractor.config import Config
from extractor.engines.compute_dtype import compute_dtype
from extractor.engines.job import Job, Progress, StopFlag
from extractor.engines.session import Session
from extractor.errors import EngineError
from extractor.layers import resolve_layers
from extractor.model_info import ModelInfo
from extractor.samples import Sample

_REPORT_SECONDS = 1.0


@contextlib.contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
    """transformers draws its bar of weights into log files as well."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    if shown and not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()


class ResidualReader:
    """Runs a model over one unpadded sequence and returns residual streams by layer id, straight from the decoder
    layers' inputs and the last one's output: Hugging Face's own `hidden_states` norms the last entry."""

    def __init__(self, model_dir: Path, dtype: str, *, trust_remote_code: bool = False) -> None:
        """`dtype`: compute dtype by torch name. Raises EngineError when transformers can't load the model."""
        self.info = ModelInfo.from_dir(model_dir)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            with _bars_on_terminals_only():
                model = AutoModel.from_pretrained(
                    model_dir, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code, **_experts(dtype)
                )
        except Exception as error:
            raise EngineError(
                f"transformers {transformers.__version__} could not load {model_dir}: {error}; check that the folder "
                "is complete (and --trust-remote-code if it brings its own code)"
            ) from error
        if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
            # Gemma-2: PyTorch's fused attention, which transformers prefers, leaves the softcap out without a word.
            model.set_attn_implementation("eager")
        _heed_time_step_limit(model)
        self._model = model.to(self.device).eval()
        self._layers = _decoder_layers(self._model, self.info.num_layers)

    @torch.inference_mode()
    def read(self, token_ids: np.ndarray, layer_ids: Sequence[int]) -> list[torch.Tensor]:
        """`token_ids` int [T] -> one tensor [T, H] in the compute dtype per layer id, in the order given."""
        kept: dict[int, torch.Tensor] = {}
        hooks = [self._hook(layer_id, kept) for layer_id in layer_ids]
        try:
            ids = torch.as_tensor(np.asarray(token_ids, np.int64), device=self.device)
            self._model(input_ids=ids[None], use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        return [kept[layer_id] for layer_id in layer_ids]

    def _hook(self, layer_id: int, kept: dict[int, torch.Tensor]) -> Any:
        # Clones: a layer that adds in place would change a tensor that is read only after the forward pass.
        if layer_id == self.info.num_layers:

            def after(_module: Any, _args: Any, output: Any) -> None:
                kept[layer_id] = (output[0] if isinstance(output, tuple) else output)[0].clone()

            return self._layers[-1].register_forward_hook(after)

        def before(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            kept[layer_id] = (args[0] if args else kwargs["hidden_states"])[0].clone()

        return self._layers[layer_id].register_forward_pre_hook(before, with_kwargs=True)


class TransformersEngine:
    """One sequence per forward pass, one process."""

    def __init__(self, config: Config, longest: int) -> None:
        """`longest` is unused: any length runs that fits in memory."""
        info = ModelInfo.from_dir(config.model)
        self._layer_ids = resolve_layers(config.layers, info.num_layers, config.last)
        dtype = compute_dtype(config.compute_dtype, info.dtype)
        self._reader = ResidualReader(config.model, dtype, trust_remote_code=config.trust_remote_code)

    def run(
        self, job: Job, samples: Iterator[Sample], report: Callable[[Progress], None], stop: StopFlag
    ) -> list[dict[str, Any]]:
        """See `Engine.run`."""
        session = Session(job, rank=0, device=self._reader.device)
        try:
            last_report = time.monotonic()
            for sample in samples:
                if stop():
                    break
                session.expect(sample)
                layers = self._reader.read(sample.token_ids, self._layer_ids)
                session.step(layers, [Chunk(sample.sample_id, 0, 0, sample.token_ids.size)])
                if time.monotonic() - last_report > _REPORT_SECONDS:
                    report(Progress.of_ranks([session.status()]))
                    last_report = time.monotonic()
            return [session.finish()]
        finally:
            session.close()

    def close(self) -> None:
        """Nothing outlives the object."""


def _experts(dtype: str) -> dict[str, str]:
    """PyTorch's grouped product, which transformers uses for experts, knows no float64."""
    return {"experts_implementation": "eager"} if dtype == "float64" else {}


def _heed_time_step_limit(model: Any) -> None:
    """Nemotron-H in transformers clips time steps at `time_step_min`, which is about initial weights, and has no use
    for `time_step_limit`, the bounds that the model was trained with (transformers PR 48989)."""
    for module in model.modules():
        if type(module).__name__ == "NemotronHMamba2Mixer":
            module.time_step_limit = tuple(map(float, model.config.time_step_limit))


def _decoder_layers(model: torch.nn.Module, num_layers: int) -> torch.nn.ModuleList:
    # In a model that also sees, the image tower may have as many layers.
    text = getattr(model, "language_model", model)
    for module in text.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == num_layers:
            return module
    raise EngineError(
        f"{type(model).__name__} has no list of {num_layers} decoder layers, so layer ids have no meaning in it; use "
        "--engine vllm"
    )
