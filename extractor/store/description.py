"""What a shard says of itself: who wrote it, and for which store."""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import Any

from extractor.errors import CorruptError, StoreError
from extractor.record import FORMAT_VERSION


def decode_description(raw: bytes, file: Path, fingerprint: str) -> dict[str, Any]:
    """run_id, writer, fingerprint, format_version. Raises CorruptError when it is damaged, StoreError when it is
    another store's or a newer format's."""
    damaged = CorruptError(f"{file} has no readable description")
    try:
        about: dict[str, Any] = json.loads(raw)
        version, found = int(about["format_version"]), str(about["fingerprint"])
        about |= {"run_id": str(about["run_id"]), "writer": int(about["writer"])}
    except (ValueError, TypeError, KeyError) as error:
        raise damaged from error
    is_own = is_same_but_for_damage(found, fingerprint)
    if is_own and (found != fingerprint or version > FORMAT_VERSION):  # the version is part of the fingerprint
        raise damaged
    if version > FORMAT_VERSION:
        raise StoreError(
            f"{file} has format version {version}; this release reads up to {FORMAT_VERSION}; update the extractor"
        )
    require_own(found, fingerprint, file)
    return about


def is_same_but_for_damage(found: str, fingerprint: str) -> bool:
    """Whether at most one letter differs: those of two stores differ in nearly all of 16, a flipped bit's in one."""
    return len(found) == len(fingerprint) and sum(map(operator.ne, found, fingerprint)) <= 1


def require_own(found: str, fingerprint: str, file: Path) -> None:
    """Raise StoreError for a shard of another store: its samples have other values under the same ids."""
    if not is_same_but_for_damage(found, fingerprint):
        raise StoreError(
            f"{file} belongs to a store of fingerprint {found}, this store has {fingerprint}; move the shard's folder "
            "back to its own store; if all shards say so, it is manifest.json that was changed: delete it and run "
            "`extractor verify --repair`, which writes it anew"
        )
