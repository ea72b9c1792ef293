"""Extract hidden states of large language models for training EAGLE-3 draft models.

Names are loaded on first use: reading a store must not import torch or vLLM.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# No module may carry the name of an exported function: importing `extractor.extract` as a module would
# replace the function on the package. Hence extraction.py and planning.py.
_EXPORTS = {
    "Config": "extractor.config",
    "ExtractorError": "extractor.errors",
    "HiddenStateDataset": "extractor.loader",
    "PlanConfig": "extractor.planning",
    "Store": "extractor.store",
    "extract": "extractor.extraction",
    "plan": "extractor.planning",
}
__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'extractor' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
