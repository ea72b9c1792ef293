"""`extractor export`: a store in another trainer's file format."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from extractor.shell import shell_command
from extractor.sizes import counted, size

if TYPE_CHECKING:
    from extractor.exports.job import ExportSummary

HELP = "write a store in the file format of another trainer"
EXAMPLE = "extractor export store/ --to speculators --out speculators-data/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    formats = ("speculators", "specforge", "modelopt", "safetensors")
    parser.add_argument("store", type=Path, metavar="STORE", help="store written by `extractor extract`")
    parser.add_argument("--to", required=True, choices=formats, help="the format")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to create or continue")
    parser.add_argument("--model", type=Path, metavar="DIR", help="the target's folder (specforge: for its final norm)")
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", "float16", "bfloat16", "float32"),
        help="of the written states (default: the store's; the model's for specforge and modelopt)",
    )
    parser.add_argument(
        "--index-only",
        action="store_true",
        help="speculators: write the data set alone, for training straight from the store",
    )
    parser.add_argument("--force", action="store_true", help="start although the disk looks too small")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON document")


def run(args: argparse.Namespace) -> int:
    from extractor.errors import UsageError
    from extractor.exports.job import ExportOptions, as_json, export_store

    if args.index_only and args.to != "speculators":
        raise UsageError(
            f"--index-only goes with --to speculators, not with {args.to}: its trainer has no other reader"
        )
    options = ExportOptions(dtype=args.dtype, model=args.model, index_only=args.index_only, force=args.force)
    summary = export_store(args.store, args.to, args.out, options, _progress if sys.stderr.isatty() else None)
    if args.json:
        print(json.dumps(as_json(summary)))
    else:
        print(_index(args.store, summary) if args.index_only else _files(summary))
    return 0


def _files(summary: ExportSummary) -> str:
    kept = f", {summary.kept:,} already there" if summary.kept else ""
    return (
        f"{counted(summary.samples, 'sample')}, {counted(summary.tokens, 'token')} as {summary.format} "
        f"({summary.dtype}) in "
        f"{summary.out}: {counted(summary.written, 'file')} written ({size(summary.bytes)}){kept}"
    )


def _index(store: Path, summary: ExportSummary) -> str:
    train = ("python", "-m", "extractor.exports.speculators_train", "train", "--hidden-states-backend", "extractor")
    paths = ("--hidden-states-path", store, "--data-path", summary.out)
    return (
        f"{counted(summary.samples, 'sample')}, {counted(summary.tokens, 'token')}: {summary.out} holds the data set "
        "without the states, "
        f"which are read from {store}:\n{shell_command(*train, *paths)} ..."
    )


def _progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{done:,} of {counted(total, 'sample')}", end=end, file=sys.stderr, flush=True)
