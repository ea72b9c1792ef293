"""`extractor inspect`: what a store or one of its samples holds."""

from __future__ import annotations

import argparse
import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extractor.completeness import completeness
from extractor.errors import CorruptError
from extractor.shell import shell_command

if TYPE_CHECKING:
    from extractor.store import Store, StoredSample

COUNTED_SAMPLES = 20_000  # whose seals are read for totals: 0.4 s from the page cache
HELP = "show what a store, or one sample of it, holds"
EXAMPLE = "extractor inspect out/store A2-17 --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, help="store folder")
    parser.add_argument("sample_id", nargs="?", help="show this sample instead of the store")
    parser.add_argument("--list", action="store_true", help="list every sample with its number of tokens")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when a shard can't be opened."""
    from extractor.cli.store_tables import print_document
    from extractor.store import Store

    store = Store.quietly(args.store)
    if args.sample_id is not None:
        document = sample_document(store[args.sample_id])
    else:
        document = store_document(store)
    if args.list:
        document["sample_list"] = [
            {"sample_id": name, "num_tokens": int(tokens)} for name, tokens in zip(store, store.lengths, strict=True)
        ]
    if args.json:
        print(json.dumps(document, indent=2))
    elif args.sample_id is not None:
        print_document(document)
    else:
        print_document(_for_people(document, store))
    return 1 if store.problems else 0


def store_document(store: Store) -> dict[str, Any]:
    """Everything `inspect STORE --json` prints; sizes in bytes."""
    return {
        "store": str(store.path),
        "samples": len(store),
        "tokens": int(store.lengths.sum()),
        "stored_bytes": int(store.stored_bytes.sum()),
        "raw_bytes": int(store.lengths.sum()) * store.manifest.row_bytes,
        "file_bytes": sum(shard.file_bytes for shard in store.shards),
        "dead_bytes": sum(shard.dead_bytes for shard in store.shards),
        **_value_totals(store),
        "complete": completeness(store).complete,
        "problems": {name: str(error) for name, error in store.problems.items()},
        "rejects": [asdict(reject) for reject in store.rejects],
        "shards": [asdict(shard) for shard in store.shards],
        "manifest": asdict(store.manifest),
    }


def _value_totals(store: Store) -> dict[str, int | None]:
    """None where it would take long, as each seal is a disk access, and where a seal is damaged."""
    from extractor.store.totals import value_totals

    if len(store) <= COUNTED_SAMPLES:
        with contextlib.suppress(CorruptError):
            return asdict(value_totals(store.at(row) for row in range(len(store))))
    return dict.fromkeys(("saturated", "inf", "nan"))


def _for_people(document: dict[str, Any], store: Store) -> dict[str, Any]:
    changed: dict[str, Any] = {"complete": str(completeness(store))}
    if document["saturated"] is None:
        why = f"over {COUNTED_SAMPLES:,} samples" if len(store) > COUNTED_SAMPLES else "a seal is damaged"
        text = f"not counted: {why}; `{shell_command('extractor', 'verify', store.path)}` counts"
        changed |= dict.fromkeys(("saturated", "inf", "nan"), text)
    return {**document, **changed}


def sample_document(sample: StoredSample) -> dict[str, Any]:
    """Everything `inspect STORE SAMPLE_ID --json` prints."""
    names = ("saturated", "inf", "nan", "max_abs")
    return {
        "sample_id": sample.sample_id,
        "num_tokens": len(sample),
        "trained_tokens": int(sample.loss_mask.sum()),
        "stored_bytes": sample.seal.stored_bytes,
        "raw_bytes": len(sample) * sample.seal.row_bytes,
        "shard": sample.shard_name,
        "layers": [
            {"layer_id": layer, **dict(zip(names, stats.tolist(), strict=True))}
            for layer, stats in zip(sample.layer_ids, sample.stats, strict=True)
        ],
        "tiles": [
            {"position": int(t["position"]), "rows": int(t["rows"]), "stored_bytes": int(t["stored_bytes"])}
            for t in sample.seal.tiles
        ],
        "token_ids": sample.token_ids.tolist(),
        "loss_mask": sample.loss_mask.tolist(),
    }
