"""How the lease queue behaves at scale: its real code, on simulated nodes with rates, failures and disks. No model.

    python bench/replica_simulation.py --nodes 64 --tokens 1e9

Time is simulated, so the table is the same on every machine. What is modelled: sample lengths (log-normal, mean about
3,450 tokens, capped at 16,384), engines of nearly one rate, slow nodes, nodes that die (exponential) and come back
after detection and loading, disks that are slow or fill up, commits every 10 s (what a dying node did since its last
one is lost), one lease of look-ahead, shares by measured speed. What is not: the network, Ray, the driver's own time.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

import numpy as np
from replica_world import Outcome, Simulation, World

from extractor.replicas.leases import LeaseLimits


def sample_lengths(tokens: float, seed: int) -> np.ndarray:
    """int64 [N] that add up to at least `tokens`."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(np.exp(rng.normal(7.8, 0.9, int(tokens / 2000) + 1)), 16_384).astype(np.int64) + 1
    return lengths[: int(np.searchsorted(np.cumsum(lengths), tokens)) + 1]


WORLDS = (
    World(name="equal nodes"),
    World(name="1 of 16 at a quarter of the speed", slow_share=1 / 16),
    World(name="each node dies every 10 h", mtbf_hours=10),
    World(name="each node dies every hour", mtbf_hours=1),
    World(name="1 of 16 has 300 GB of disk", small_disk_share=1 / 16),
    World(name="all of it", slow_share=1 / 16, mtbf_hours=1, small_disk_share=1 / 16),
)
POLICIES = (
    LeaseLimits(min_tokens=1 << 20, max_tokens=1 << 20),
    LeaseLimits(min_tokens=1 << 17, max_tokens=1 << 17),
    LeaseLimits(),
)
_HEADS = ("nodes", "lease tokens", "minutes", "over ideal", "tail s", "idle", "leases", "deaths", "full", "lost tokens")


def _cells(o: Outcome) -> tuple[str, ...]:
    over = f"{o.seconds / o.ideal - 1:.1%}" if o.done else "unfinished"
    figures = (f"{o.tail:.1f}", f"{o.idle_share:.2%}", f"{o.leases:,}", str(o.deaths), str(o.retired))
    return (o.world, o.policy, f"{o.seconds / 60:.2f}", over, *figures, f"{o.lost_tokens:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--tokens", type=float, default=1e9, help="of the whole corpus")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    lengths = sample_lengths(args.tokens, args.seed)
    outcomes = [Simulation(world, p, lengths, args.nodes, args.seed).run() for world in WORLDS for p in POLICIES]
    if args.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
        return
    print(f"{args.nodes} nodes, {lengths.size:,} samples, {int(lengths.sum()):,} tokens, seed {args.seed}\n")
    rows = [_HEADS, tuple("---" for _ in _HEADS), *(_cells(outcome) for outcome in outcomes)]
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))


if __name__ == "__main__":
    main()
