"""What a run has sealed so far, read from its shards: the only evidence that anything is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extractor.manifest import Manifest
from extractor.record import Seal
from extractor.store.layout import shards
from extractor.store.shard_file import ShardFile


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSample:
    """`findings`: one for each layer with saturated, inf or NaN values."""

    sample_id: str
    tokens: int
    findings: list[dict[str, Any]]


class SealReader:
    """Follows the shards of the runs `<run_id>-<n>` in a store that others may write to as well."""

    def __init__(self, store: Path, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._manifest = Manifest.load(store)
        self._mine: dict[Path, ShardFile | None] = {}
        self._counts: dict[Path, int] = {}

    def new(self) -> list[SealedSample]:
        """Samples sealed since the last call. Raises StoreError kinds."""
        return [sample for shard in self._shards() for sample in self._new_in(shard)]

    def _shards(self) -> list[ShardFile]:
        for path in shards(self._store):
            if path not in self._mine:
                shard = ShardFile(path)
                about = shard.listing(self._manifest.fingerprint()).about
                self._mine[path] = shard if about["run_id"].startswith(f"{self._run_id}-") else None
        return [shard for shard in self._mine.values() if shard is not None]

    def _new_in(self, shard: ShardFile) -> list[SealedSample]:
        listing = shard.listing(self._manifest.fingerprint())
        done = self._counts.get(shard.path, 0)
        entries = listing.entries[done:]
        self._counts[shard.path] = len(listing.entries)
        seals = [shard.seal(int(entry["seal_offset"]), int(entry["seal_bytes"])) for entry in entries]
        return [self._sealed(seal) for seal in seals]

    def _sealed(self, seal: Seal) -> SealedSample:
        return SealedSample(
            sample_id=seal.sample_id, tokens=len(seal.token_ids), findings=findings_of(seal, self._manifest.layer_ids)
        )


def sealed_by(store: Path, run_id: str) -> list[SealedSample]:
    """All that the runs `<run_id>-<n>` have sealed in `store`."""
    return SealReader(store, run_id).new()


def findings_of(seal: Seal, layer_ids: tuple[int, ...]) -> list[dict[str, Any]]:
    """The layers of a sample that hold saturated, inf or NaN values, in the form of `detect.Finding.as_json`. A seal
    does not know where in the sample they are: `position` is None."""
    return [
        {
            "kind": kind,
            "sample_id": seal.sample_id,
            "position": None,
            "layer_id": layer,
            "count": int(row[kind]),
            "value": float(row["max_abs"]) if kind == "saturated" else None,
            "detail": "as the seal says",
        }
        for layer, row in zip(layer_ids, seal.stats, strict=True)
        for kind in ("saturated", "inf", "nan")
        if row[kind]
    ]
