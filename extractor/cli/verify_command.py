"""`extractor verify`: whether a store's bytes are what was sealed, and what an independent engine computes."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extractor.cli.numbers import at_least
from extractor.errors import UsageError
from extractor.shell import shell_command
from extractor.sizes import counted

if TYPE_CHECKING:
    from extractor.completeness import Completeness
    from extractor.integrity import IntegrityReport

HELP = "check a store's structure, lengths, checksums and counts, and its values against a reference"
EXAMPLE = "extractor verify out/store --reference models/SmolLM2-135M-Instruct --samples 4"
_REJECTS = 3
_SAMPLES = 4
_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, help="store folder")
    parser.add_argument("--quick", action="store_true", help="structure and lengths, and the tiles of 64 samples")
    parser.add_argument("--repair", action="store_true", help="give up what is damaged; the next extract redoes it")
    parser.add_argument("--workers", type=at_least(1), default=4, help="threads that read and check (default 4)")
    parser.add_argument("--reference", type=Path, metavar="MODEL", help="recompute samples with this model folder")
    parser.add_argument("--samples", type=at_least(1), metavar="K", help="how many to recompute (default 4)")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="which to recompute: another seed draws others (default 0)"
    )
    parser.add_argument("--trust-remote-code", action="store_true", help="let the model folder's own code run")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """0 sound; 1 damaged, or beyond the reference's tolerance; 3 damaged and repaired."""
    _require_reference(args)
    if args.repair:
        _restore_manifest(args.store)
    report, document = _check(args)
    complete = report.completeness
    code = 0 if report.ok else 1
    if args.repair and not report.ok:
        document["repair"] = _repair(args.store, report)
        complete = _state_after(args.store, document)
        code = _REJECTS
    if args.reference is not None:
        document["reference"] = _reference(args)
        document["ok"] = document["ok"] and document["reference"]["ok"]
        code = code if document["reference"]["ok"] else 1
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        _print(document, complete)
        if report.findings and not args.repair:
            print(_how_to_repair(args.store, complete.remedy), file=sys.stderr)
    return code


def _restore_manifest(store: Path) -> None:
    from extractor.store.lost_manifest import restore_manifest

    shard = restore_manifest(store)
    if shard:
        print(f"verify: the manifest was written anew from the copy in {shard}", file=sys.stderr)


def _require_reference(args: argparse.Namespace) -> None:
    for name in ("samples", "seed"):
        if args.reference is None and getattr(args, name) is not None:
            raise UsageError(
                f"--{name} {getattr(args, name)} says what to recompute, and there is no model to do it; pass the "
                "store's model folder with --reference"
            )


def _check(args: argparse.Namespace) -> tuple[IntegrityReport, dict[str, Any]]:
    from extractor.cli.byte_progress import ByteProgress
    from extractor.integrity import check_store

    with ByteProgress("verify") as progress:
        report = check_store(args.store, quick=args.quick, workers=args.workers, progress=progress.update)
    return report, {"ok": report.ok, **_as_json(report)}


def _as_json(report: IntegrityReport) -> dict[str, Any]:
    document = asdict(report)
    values = document.pop("values")
    del document["completeness"]
    return {**document, **values, **_told(report.completeness)}


def _told(complete: Completeness) -> dict[str, Any]:
    return {"complete": complete.complete, "expected_samples": complete.expected}


def _repair(store: Path, report: IntegrityReport) -> dict[str, Any]:
    from extractor.repair import repair

    return asdict(repair(store, report))


def _state_after(path: Path, document: dict[str, Any]) -> Completeness:
    """Put what the store holds after the repair in the place of what it held before."""
    from extractor.completeness import completeness
    from extractor.store import Store

    store = Store.quietly(path)
    complete = completeness(store)
    document |= {"samples": len(store), "tokens": int(store.lengths.sum()), **_told(complete)}
    return complete


def _reference(args: argparse.Namespace) -> dict[str, Any]:
    from extractor.store import Store
    from extractor.verify import verify_reference

    def tell(done: int, total: int) -> None:
        print(f"verify: {done} of {counted(total, 'sample')} recomputed", file=sys.stderr)

    store = Store.quietly(args.store)
    found = verify_reference(
        store,
        args.reference,
        args.samples or _SAMPLES,
        seed=args.seed or 0,
        trust_remote_code=args.trust_remote_code,
        report=tell,
    )
    return found.as_json()


def _print(document: dict[str, Any], complete: Completeness) -> None:
    from extractor.cli.store_tables import print_document

    findings = document["findings"]
    for finding in findings[:_SHOWN]:
        print(f"{finding['shard']}: {finding['message']}", file=sys.stderr)
    if len(findings) > _SHOWN:
        print(f"... and {len(findings) - _SHOWN} more; --json lists all", file=sys.stderr)
    reference = document.pop("reference", None)
    print_document({**document, "findings": len(findings), "complete": str(complete)})
    if "repair" in document:
        print(_what_is_redone(document["repair"], complete.remedy), file=sys.stderr)
    if reference is not None:
        _print_reference(reference)


def _what_is_redone(repair: dict[str, Any], remedy: str) -> str:
    lost = [counted(len(repair["redo"]), "sample")] if repair["redo"] else []
    if repair["unnamed"] is None:
        lost.append("perhaps samples whose names are lost with their shard's index")
    elif repair["unnamed"]:
        lost.append(f"{counted(repair['unnamed'], 'sample')} whose names are lost with their shard's index")
    if lost:
        return f"repaired; lost: {', and '.join(lost)}; {remedy} stores whatever is missing"
    return f"repaired; nothing is lost{'; every damaged sample is saved' if repair['saved'] else ''}"


def _how_to_repair(store: Path, remedy: str) -> str:
    command = shell_command("extractor", "verify", store, "--repair")
    return f"`{command}` gives up what is damaged and saves the rest; {remedy} then stores what is missing"


def _print_reference(reference: dict[str, Any]) -> None:
    from extractor.cli.store_tables import print_document

    layers = [{name: value for name, value in layer.items() if name != "worst"} for layer in reference["layers"]]
    print_document({"within tolerance": reference["ok"], "samples": reference["samples"], "layers": layers})
    for layer in reference["layers"]:
        worst = layer["worst"]
        if worst is not None:
            print(
                f"layer {layer['layer_id']}: worst at sample {worst['sample_id']!r} token {worst['token']} channel "
                f"{worst['channel']}: stored {worst['stored']:g}, reference {worst['reference']:g}, "
                f"allowed difference {worst['tolerance']:g}"
            )
