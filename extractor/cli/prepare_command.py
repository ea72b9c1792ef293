"""`extractor prepare`: data sets of many shapes -> one samples file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extractor.errors import UsageError
from extractor.sizes import counted

if TYPE_CHECKING:
    from extractor.prepare import PrepareOptions

HELP = "merge, shuffle and tokenize data sets into samples.parquet"
EXAMPLE = "extractor prepare chats.jsonl tools/ mix.yaml --tokenizer models/Kimi-K2.5 --out samples --max-length 8192"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Defaults are those of PrepareOptions."""
    add = parser.add_argument
    add(
        "data",
        nargs="+",
        metavar="DATA",
        help="file (JSON, JSONL, .gz, .zst, Parquet, Arrow), folder, or recipe (.yaml)",
    )
    add("--tokenizer", type=Path, required=True, metavar="DIR", help="folder of the target model or its tokenizer")
    add("--out", type=Path, metavar="DIR", help="folder for samples.parquet, report.json, rejects.jsonl")
    add("--max-length", type=int, default=8192, metavar="TOKENS", help="cap of a sample, 0: none (default: 8192)")
    add("--overlong", default="truncate", metavar="RULE", help="truncate, drop or error (default: truncate)")
    add("--seed", type=int, default=0, help="seed of the shuffle and of draws (default: 0)")
    add(
        "--train-on",
        default="thinking,response,tool",
        metavar="PARTS",
        help="generated parts in the loss mask, a list of thinking, response, tool (default: all three)",
    )
    add("--turns", default="all", metavar="WHICH", help="answers to train on: all or last (default: all)")
    add(
        "--lacking",
        default="inline",
        metavar="RULE",
        help="what the chat template has no place for: inline or reject (default: inline)",
    )
    add(
        "--format",
        default="auto",
        dest="data_format",
        metavar="NAME",
        help="shape of the records: messages, sharegpt, alpaca, qa, api, nested, raw, ids, or auto, by content "
        "(default: auto)",
    )
    add("--keep-duplicates", action="store_true", help="keep samples with equal ids")
    add("--chat-template", type=Path, metavar="FILE", help="Jinja file instead of the tokenizer's own template")
    add("--trust-remote-code", action="store_true", help="run the tokenizer folder's own Python code")
    add("--workers", type=int, default=0, metavar="N", help="processes (default: one per core)")
    add("--max-record-bytes", type=int, default=64 << 20, metavar="N", help="largest record read (default: 64 MiB)")
    add("--show", type=int, metavar="K", help="print K samples with their parts in colour, write nothing")
    add("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """0 when every record found its place, 3 when some were rejected or dropped (listed in rejects.jsonl)."""
    from extractor.prepare import prepare
    from extractor.prepare.show import show

    if args.show is not None and args.show < 1:
        raise UsageError(f"--show is {args.show}; at least 1 sample can be shown")
    if args.show is not None:
        show(options(args), args.show)
        return 0
    report = prepare(options(args))
    print(json.dumps(report, indent=2) if args.json else _table(report))
    _note_assumed_masks(report)
    records = report["total"]["records"]
    return 3 if records["rejected"] or set(records["dropped"]) - {"not_drawn"} else 0


def _note_assumed_masks(report: dict[str, Any]) -> None:
    count = report["total"]["repairs"].get("mask_assumed", 0)
    if count:
        print(
            f"note: ids without loss_mask, segments or turns that the tokenizer knows in {counted(count, 'record')}; "
            "every "
            "token of them is trained on",
            file=sys.stderr,
        )


def options(args: argparse.Namespace) -> PrepareOptions:
    """Raises UsageError for values that are not allowed."""
    from extractor.prepare import PrepareOptions

    if args.out is None and args.show is None:
        raise UsageError("--out is missing; name the folder for the samples file, or pass --show K to look only")
    return PrepareOptions(
        data=tuple(args.data),
        tokenizer=args.tokenizer,
        out=args.out or Path(),
        max_length=args.max_length or None,
        overlong=args.overlong,
        seed=args.seed,
        train_on=tuple(part.strip() for part in args.train_on.split(",") if part.strip()),
        turns=args.turns,
        lacking=args.lacking,
        dedupe=not args.keep_duplicates,
        data_format=args.data_format,
        chat_template=args.chat_template,
        trust_remote_code=args.trust_remote_code,
        workers=args.workers,
        max_record_bytes=args.max_record_bytes,
        progress=sys.stderr.isatty(),
    )


def _table(report: dict[str, Any]) -> str:
    """One line a source, the total last."""
    rows = [*report["sources"].items(), ("total", report["total"])]
    head = ("source", "read", "kept", "duplicate", "dropped", "rejected", "samples", "tokens", "trained")
    table = [head, *(_row(name, source) for name, source in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]
    reasons = {**report["total"]["records"]["rejected"], **report["total"]["records"]["dropped"]}
    return "\n".join(
        [*lines, *(f"{count:>8} {reason}" for reason, count in sorted(reasons.items(), key=lambda r: -r[1]))]
    )


def _row(name: str, source: dict[str, Any]) -> tuple[str, ...]:
    records, samples, tokens = source["records"], source["samples"], source["tokens"]
    counts = (
        records["read"],
        records["kept"],
        records["duplicate"],
        sum(records["dropped"].values()),
        sum(records["rejected"].values()),
        samples["kept"],
        tokens["total"],
        tokens["trained"],
    )
    return name, *(f"{count:,}" for count in counts)
