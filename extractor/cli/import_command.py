"""`extractor import`: another project's hidden-state files as a store."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from extractor.cli.numbers import at_least
from extractor.sizes import counted

HELP = "make a store of the hidden-state files of another project"
EXAMPLE = "extractor import specforge-data/ --from specforge --model model/ --out store/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    formats = ("speculators", "specforge", "modelopt", "safetensors")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the other project's data folder")
    parser.add_argument("--from", dest="form", required=True, choices=formats, help="whose files they are")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="folder of the target model")
    parser.add_argument("--out", type=Path, required=True, metavar="STORE", help="store to create or continue")
    parser.add_argument(
        "--layers",
        metavar="IDS",
        help="ids of the files' aux states, in their order and in this project's count: SpecForge's and "
        "Model-Optimizer's (1, n//2-1, n-4) are our eagle3 = (2, n//2, n-3) (default: those that the files state, as "
        "`extractor export` writes them, else eagle3)",
    )
    parser.add_argument(
        "--dtype", default="auto", choices=("auto", "float16", "bfloat16"), help="stored dtype (default: the files')"
    )
    parser.add_argument(
        "--pad-token", type=at_least(0), metavar="ID", help="cut trailing tokens of this id that are not trained on"
    )
    parser.add_argument("--force", action="store_true", help="start although the disk looks too small")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON document")


def run(args: argparse.Namespace) -> int:
    from extractor.imports import ImportOptions, import_folder

    options = ImportOptions(
        model=args.model, layers=args.layers, dtype=args.dtype, pad_token=args.pad_token, force=args.force
    )
    report = _progress if sys.stderr.isatty() else None
    summary = import_folder(args.folder, args.form, args.out, options, report)
    if args.json:
        print(json.dumps(asdict(summary)))
        return summary.exit_code
    print(
        f"{counted(summary.samples, 'sample')}, {counted(summary.tokens, 'token')} of {summary.format} as "
        f"{summary.dtype}, layer ids "
        f"{summary.layer_ids}, in {summary.out}; {summary.already_stored:,} were stored already; {summary.note}"
    )
    if summary.rejected:
        verb = "was" if summary.rejected == 1 else "were"
        print(f"{counted(summary.rejected, 'file')} {verb} rejected; {summary.rejects_file} says why", file=sys.stderr)
    if summary.saturated or summary.inf or summary.nan:
        print(
            f"{summary.saturated:,} values were beyond the stored dtype's range, {summary.inf:,} infinite, "
            f"{summary.nan:,} NaN; `extractor inspect` shows where",
            file=sys.stderr,
        )
    return summary.exit_code


def _progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{done:,} of {counted(total, 'file')}", end=end, file=sys.stderr, flush=True)
