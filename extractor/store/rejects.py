"""What `verify --repair` gave up: seals that no longer count, and shards whose readable samples were copied elsewhere.

`rejects.jsonl` holds one object a line: shard, seal_offset (null: the whole shard), sample_id, reason, and xxh3 of the
line without it: a flipped bit in a name would hide a sound shard.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from extractor.errors import StoreError
from extractor.record import checksum
from extractor.store.disk import sync_folder, write_atomically
from extractor.store.remedy import run_repair
from extractor.store.shard_names import shard_number

NAME = "rejects.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """One seal, named by its place, or (seal_offset None) a whole shard."""

    shard: str
    seal_offset: int | None = None
    sample_id: str | None = None
    reason: str


def read_rejects(store: Path) -> list[Reject]:
    """All entries, oldest first. Raises StoreError for a damaged line."""
    file = store / NAME
    try:
        return [_parse(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{file} has a line that is not a reject ({error}); restore the file from a copy, or delete it and "
            f"{run_repair(store)}, which finds the damage again"
        ) from error


def _parse(line: str) -> Reject:
    """Raises ValueError or TypeError. The name is checked because `compact` deletes the folder of that name."""
    fields = {**json.loads(line)}
    stated = fields.pop("xxh3", None)
    reject = Reject(**fields)
    if stated not in (None, _checksum(reject)):
        raise ValueError("it does not match its checksum")
    if shard_number(reject.shard) is None or not isinstance(reject.seal_offset, int | None):
        raise ValueError(f"shard {reject.shard!r}, seal_offset {reject.seal_offset!r}")
    return reject


def _checksum(reject: Reject) -> str:
    return f"{checksum(json.dumps(dataclasses.asdict(reject)).encode()):016x}"


def add_rejects(store: Path, new: Iterable[Reject]) -> None:
    """Append durably, all or none."""
    write_rejects(store, [*read_rejects(store), *new])


def write_rejects(store: Path, rejects: Iterable[Reject]) -> None:
    """Replace the list durably. A store without rejects has none."""
    lines = [json.dumps({**dataclasses.asdict(reject), "xxh3": _checksum(reject)}) + "\n" for reject in rejects]
    if lines:
        write_atomically(store / NAME, "".join(lines))
    elif (store / NAME).exists():
        (store / NAME).unlink()
        sync_folder(store)
