"""speculators' own trainer on a machine without a GPU, reading from a store or from its own files.

    python examples/speculators_on_cpu.py train --verifier-name-or-path model/ --data-path data/ \\
        --hidden-states-backend extractor --hidden-states-path store/ --hidden-states-dtype float32 \\
        --draft-attn-impl eager --loss-implementation eager ...

As released (0.9.0) it can't: `Trainer.setup_model` calls `model.to(local_rank)` with the integer 0, which means an
accelerator ("Cannot access accelerator device when none is available"), and its step timer calls
`torch.accelerator.synchronize`, which raises for the same reason. Both are answered here from outside; nothing of the
package is changed, and training itself is its own code. float32, since its autocast is off without a GPU; `eager`,
since the default attention and loss are compiled GPU kernels.
"""

from __future__ import annotations

import torch

from extractor.exports import speculators_train


def use_cpu() -> None:
    """Let the trainer take the CPU for the device of local rank 0."""
    if torch.accelerator.is_available():
        return
    from speculators.train import trainer

    trainer.get_local_rank = lambda: torch.device("cpu")
    torch.accelerator.synchronize = lambda device=None: None


if __name__ == "__main__":
    use_cpu()
    speculators_train.main()
