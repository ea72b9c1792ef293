"""The dtype that an engine computes in: one answer for the engine, the manifest and whoever compares values later."""

from __future__ import annotations


def compute_dtype(choice: str, checkpoint: str) -> str:
    """`auto` is the checkpoint's dtype on a GPU, also where that is float32 and vLLM itself would take bf16; on a CPU
    it is float32: without bf16 instructions bf16 products are an order of magnitude slower there."""
    if choice != "auto":
        return choice
    import torch

    return checkpoint if torch.cuda.is_available() else "float32"
