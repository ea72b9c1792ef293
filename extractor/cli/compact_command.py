"""`extractor compact`: give dead space in a store's shards back to the disk."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from extractor.cli.numbers import share

HELP = "rewrite shards without the space of unsealed, discarded and rejected samples"
EXAMPLE = "extractor compact out/store --min-dead 0.05"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, help="store folder; no run may be writing to it")
    parser.add_argument(
        "--min-dead", type=share, default=0.05, metavar="SHARE", help="least dead share of a shard to rewrite it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    from extractor.cli.store_tables import print_document
    from extractor.compaction import compact

    done = compact(args.store, min_dead_share=args.min_dead)
    document = asdict(done)
    if args.json:
        print(json.dumps(document, indent=2))
    elif not (done.rewritten or done.removed):
        print(f"nothing to do: of each shard in {args.store} less than {args.min_dead:.3g} is dead (--min-dead)")
    else:
        print_document(document)
    return 0
