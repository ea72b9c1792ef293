"""Where replicas write, and asking there what is stored: one folder that all nodes share, or one on each node."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from extractor.errors import ClusterError, ExtractorError
from extractor.replicas.cluster import run_on_host
from extractor.replicas.events import EventLog
from extractor.replicas.member import Member
from extractor.replicas.messages import NodeReport
from extractor.replicas.node import remove_tokens, require_answer
from extractor.replicas.seals import SealedSample, sealed_by
from extractor.store import Store
from extractor.store.layout import shards
from extractor.store.parts import SHARDS_PER_PART, Part, add_part, elsewhere, parts
from extractor.store.shard_names import shard_number

_ASK_SECONDS = 60.0


class Places(Protocol):
    """Seen from the driver."""

    token: Path | None

    def assign(self, member: Member, report: NodeReport) -> int | None:
        """Set the member's store; returns the first shard number of a part, None in a shared store."""
        ...

    def sealed(self, member: Member) -> list[SealedSample]:
        """What this life of the member has sealed, as far as it can be read now."""
        ...

    def close(self) -> None: ...


class SharedStore:
    """All replicas write into the store itself, and the driver reads what they wrote."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.token: Path | None = out / "runs" / f".driver-{secrets.token_hex(4)}"
        self.token.touch()

    def assign(self, member: Member, report: NodeReport) -> None:
        """Raises ClusterError when what the node writes does not arrive here."""
        assert self.token is not None
        require_answer(self.token, report)
        member.store = self._out

    def sealed(self, member: Member) -> list[SealedSample]:
        return sealed_by(self._out, member.run_id)

    def close(self) -> None:
        assert self.token is not None
        remove_tokens(self.token)


class NodeStores:
    """Each life of a replica writes a part on its node's disk; the store lists host and path before the first seal."""

    token: Path | None = None

    def __init__(self, out: Path, events: EventLog) -> None:
        self._out, self._events = out, events

    def assign(self, member: Member, report: NodeReport) -> int:
        assert report.shard_dir is not None
        taken = [part.first_shard for part in parts(self._out)]
        taken += [number for folder in shards(self._out) if (number := shard_number(folder.name)) is not None]
        first = (max(taken, default=0) // SHARDS_PER_PART + 1) * SHARDS_PER_PART
        member.store = report.shard_dir / f"{self._out.resolve().name}.{member.run_id}"
        add_part(self._out, Part(host=report.host, path=member.store, run_id=member.run_id, first_shard=first))
        return first

    def sealed(self, member: Member) -> list[SealedSample]:
        try:
            if (member.store / "manifest.json").is_file():
                return sealed_by(member.store, member.run_id)
            found: list[SealedSample] = run_on_host(
                member.host, sealed_by, member.store, member.run_id, timeout=_ASK_SECONDS
            )
        except ExtractorError as error:
            # What it reported before stays; the rest is computed again, and the newest seal of a sample wins.
            self._events.write("seals-unread", replica=member.number, host=member.host, reason=str(error))
            return []
        return found

    def close(self) -> None:
        """Nothing to clear up."""


def stored_ids(out: Path, *, skip_lost: bool, events: EventLog | None = None) -> set[str]:
    """Ids sealed in `out` and all its parts. Raises ClusterError for a part on a host that can't be asked, unless
    `skip_lost`."""
    found = set(Store.quietly(out))
    for part in elsewhere(out):
        found.update(_ids_of(part, skip_lost, events))
    return found


def _ids_of(part: Part, skip_lost: bool, events: EventLog | None) -> Iterator[str]:
    try:
        yield from run_on_host(part.host, _list_ids, part.path, timeout=_ASK_SECONDS)
    except ClusterError as error:
        if not skip_lost:
            raise ClusterError(
                f"samples of this store lie in {part}, which can't be asked: {error}; with --recompute-lost they are "
                "computed again elsewhere"
            ) from error
        if events is not None:
            events.write("part-lost", host=part.host, path=str(part.path), reason=str(error))


def _list_ids(path: Path) -> list[str]:
    return list(Store.quietly(path)) if path.exists() else []
