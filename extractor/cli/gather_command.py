"""`extractor gather`: collect the shards that replicas left on the disks of their nodes."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

HELP = "collect a store's shards from the disks of the nodes that wrote them"
EXAMPLE = "extractor gather out/store --ray-address auto --move"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, help="store folder, made by `extractor extract --replicas --shard-dir`")
    parser.add_argument(
        "--ray-address",
        default="auto",
        help="Ray cluster of the nodes: auto or HOST:PORT (default: auto); not used where all parts can be seen",
    )
    parser.add_argument("--move", action="store_true", help="delete each part on its node once it is collected")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    from extractor.cli.byte_progress import ByteProgress
    from extractor.cli.store_tables import print_document
    from extractor.manifest import Manifest
    from extractor.replicas.gathering import gather, require_all
    from extractor.store.lock import require_no_writers
    from extractor.store.parts import elsewhere, parts

    Manifest.load(args.store)  # says what is wrong with a path that is no store
    require_no_writers(args.store, "gathering")
    if not parts(args.store) and not args.json:
        print(f"{args.store} has no parts: all its shards lie in the store itself, so there is nothing to gather")
        return 0
    with contextlib.ExitStack() as stack:
        if elsewhere(args.store):
            stack.enter_context(_cluster(args.ray_address))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # Ray's threads print there
        done = gather(args.store, move=args.move, report=stack.enter_context(ByteProgress("gather")).update)
    document = asdict(done)
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        print_document(document)
    require_all(done)
    return 0


def _cluster(address: str) -> contextlib.AbstractContextManager[None]:
    from extractor.replicas.run import require_ray

    require_ray()
    from extractor.replicas.cluster import connected

    return connected(address)
