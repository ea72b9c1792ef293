"""A launcher that extracts on its own ranks and then trains, on GPUs or on the CPU:

    torchrun --nproc-per-node 2 examples/train_on_ranks.py samples.parquet --model model/ --store store/ \\
        --checkpoint run.pt --epochs 2

The head is the smallest that learns something: it predicts the target's last state from the three lower ones. Put your
draft model in its place. Stop it at any time; the same command continues after the last checkpoint, to the batch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from extractor import Config, HiddenStateDataset, Store
from extractor.launch import agreed_ids, extract_on_ranks
from extractor.loader import Batch, BatchLoader, BatchOptions


def main() -> None:
    args = _arguments()
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        config = Config(samples=args.samples, model=args.model, out=args.store, engine=args.engine, last=True)
        extract_on_ranks(config)
        train(args)
    finally:
        dist.destroy_process_group()


def train(args: argparse.Namespace) -> None:
    """Epochs of packed batches; each rank gets as many, so no collective waits for ever."""
    store = Store.open(args.store, check=True)
    options = BatchOptions(dtype=torch.float32, last_apart=True)
    data = HiddenStateDataset(store, args.token_budget, sample_ids=agreed_ids(store), options=options)
    layers, hidden = store.manifest.row_shape
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear((layers - 1) * hidden, hidden))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = data.loader()
    step = resume(args.checkpoint, model, optimizer, loader)
    while data.epoch < args.epochs:
        for batch in loader:
            loss = train_step(model, optimizer, batch)
            step += 1
            line = f"rank {data.rank} epoch {batch['epoch']} step {step} loss {loss:.6f} ids {batch['sample_ids']}"
            sys.stdout.write(line + "\n")  # in one piece, unlike print: ranks share the pipe
            sys.stdout.flush()
            if step % args.checkpoint_every == 0:
                save(args.checkpoint, model, optimizer, loader, step)


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """Loss over the tokens under the mask of all ranks together."""
    predicted = model(batch["hidden_states"].flatten(1))
    errors = torch.nn.functional.smooth_l1_loss(predicted, batch["last_hidden_states"], reduction="none").mean(-1)
    sums = torch.stack([(errors * batch["loss_mask"]).sum(), batch["loss_mask"].sum()])
    total = sums.detach().clone()
    dist.all_reduce(total)
    loss = sums[0] / total[1].clamp(min=1)
    optimizer.zero_grad()
    (loss * dist.get_world_size()).backward()  # DDP averages over ranks
    optimizer.step()
    return float(total[0] / total[1].clamp(min=1))


def save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: BatchLoader, step: int) -> None:
    """The loader's state is the same on every rank."""
    if dist.get_rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        partial = path.with_name(path.name + ".partial")
        torch.save({**state, "loader": loader.state_dict(), "step": step}, partial)
        partial.replace(path)


def resume(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: BatchLoader) -> int:
    """Steps done so far."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    return int(state["step"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--engine", default="transformers", choices=("transformers", "vllm"))
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--token-budget", type=int, default=4096)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
