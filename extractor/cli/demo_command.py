"""`extractor demo`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

HELP = "run the whole main job on a small real model and compare every value with transformers"
EXAMPLE = "extractor demo --out demo/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="where to work (default: demo)")
    parser.add_argument("--engine", choices=("vllm", "transformers"), default="vllm", help="default: vllm")
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="another model folder (default: SmolLM2-135M-Instruct)"
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as one JSON document")


def run(args: argparse.Namespace) -> int:
    """0 when every value lies within tolerance, else 1."""
    from extractor.demo.run import print_result, run_demo

    result = run_demo(args.out, args.engine, args.model)
    if args.json:
        print(json.dumps({"summary": result.summary.as_json(), "reference": result.reference.as_json()}))
    else:
        print_result(result)
    return 0 if result.reference.ok else 1
