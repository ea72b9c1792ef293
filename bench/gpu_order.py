"""Does each step's slot hold that step's rows when the model is a replayed CUDA graph that reuses its buffers?"""

from __future__ import annotations

import torch
from torch import Tensor

from extractor.bench.gpu_timing import recorded
from extractor.gather_native import NativeGather
from extractor.native import NativeLibrary

STEPS, SLOTS, TOKENS, LAYERS, HIDDEN = 200, 4, 256, 3, 1024


class Model:
    """A stand-in whose graph overwrites the same layer tensors each step: layer l of step k is filled with k + 64 l."""

    def __init__(self) -> None:
        self.layers = [torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)]
        self.step = torch.zeros((), dtype=torch.float32, device="cuda")
        self.num_rows = torch.zeros(1, dtype=torch.int32, device="cuda")

    def forward(self) -> None:
        for place, layer in enumerate(self.layers):
            layer.copy_((self.step + 64 * place).expand_as(layer))
        self.num_rows.copy_((self.step.int() % TOKENS + 1).expand(1))
        self.step.add_(1).remainder_(64)


def check_order(library: NativeLibrary, inside: bool) -> list[str]:
    """Steps whose rows reached the host wrong. The gather is part of the graph (`inside`), or follows its replay; the
    number of rows is read on the device and changes from step to step; a side stream copies each slot to the host."""
    model = Model()
    rows = torch.arange(TOKENS, device="cuda").int()
    staging = torch.empty(SLOTS, TOKENS, LAYERS, HIDDEN, dtype=torch.float16, device="cuda")
    counts = torch.zeros(LAYERS, 4, dtype=torch.int64, device="cuda")
    # Inside the graph the address is fixed, so all steps share one slot.
    outs = [staging[0] if inside else out for out in staging]
    calls = [NativeGather(library, model.layers, rows, out, counts, None, model.num_rows) for out in outs]
    replay = recorded([model.forward, lambda: calls[0](model.layers)] if inside else [model.forward])
    model.step.zero_()
    pinned = torch.full((STEPS, TOKENS, LAYERS, HIDDEN), -1, dtype=torch.float16, pin_memory=True)
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    copied = [torch.cuda.Event() for _ in range(SLOTS)]
    for step in range(STEPS):
        slot = 0 if inside else step % SLOTS
        main.wait_event(copied[slot])
        staging[slot].fill_(-1)
        replay()
        if not inside:
            calls[slot](model.layers)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            pinned[step].copy_(staging[slot], non_blocking=True)
            copied[slot].record()
    torch.cuda.synchronize()
    return [f"step {step}" for step in range(STEPS) if not torch.equal(pinned[step], expected(step))]


def expected(step: int) -> Tensor:
    """What step `step` must have left: its rows filled with its values, the rows beyond untouched."""
    value = step % 64
    states = torch.full((TOKENS, LAYERS, HIDDEN), -1.0)
    states[: value % TOKENS + 1] = (value + 64.0 * torch.arange(LAYERS))[:, None]
    return states.half()
