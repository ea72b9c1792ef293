"""`extractor verify`: whether a store's bytes are what was sealed."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extractor.integrity import IntegrityReport

HELP = "check a store's structure, lengths, checksums and counts"
EXAMPLE = "extractor verify out/store --quick"
_REJECTS = 3
_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, help="store folder")
    parser.add_argument("--quick", action="store_true", help="structure and lengths, and the tiles of 64 samples")
    parser.add_argument("--repair", action="store_true", help="give up what is damaged; the next extract redoes it")
    parser.add_argument("--workers", type=int, default=4, help="threads that read and check (default 4)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """0 sound; 1 damaged; 3 damaged and repaired: samples are left to redo."""
    from extractor.cli.byte_progress import ByteProgress
    from extractor.integrity import check_store

    with ByteProgress("verify") as progress:
        report = check_store(args.store, quick=args.quick, workers=args.workers, progress=progress.update)
    document: dict[str, Any] = {"ok": report.ok, **asdict(report)}
    if args.repair and not report.ok:
        document["repair"] = _repair(args.store, report)
    _print(document, as_json=args.json)
    if report.ok:
        return 0
    return _REJECTS if args.repair else 1


def _repair(store: Path, report: IntegrityReport) -> dict[str, Any]:
    from extractor.repair import repair

    return asdict(repair(store, report))


def _print(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(document, indent=2))
        return
    from extractor.cli.store_tables import print_document

    findings = document["findings"]
    for finding in findings[:_SHOWN]:
        print(f"{finding['shard']}: {finding['message']}", file=sys.stderr)
    if len(findings) > _SHOWN:
        print(f"... and {len(findings) - _SHOWN} more; --json lists all", file=sys.stderr)
    print_document({**document, "findings": len(findings)})
