"""What the chosen job needs on the filesystem of --out, and what lies there already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from extractor.budget.geometry import Geometry
from extractor.budget.stores import FoundStore, Nearby, look_at, superseded
from extractor.budget.verdict import Verdict, judge
from extractor.disk import DiskSpace, disk_space, store_bytes
from extractor.errors import StoreError
from extractor.manifest import NAME, Manifest
from extractor.samples import SamplesFile
from extractor.store_users import users


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The samples to be stored; `size_bytes` of their rows, as they will be written (coded where a codec is chosen)."""

    samples: int
    tokens: int
    size_bytes: int

    @property
    def disk_bytes(self) -> int:
        """An upper bound of what the store will occupy."""
        return store_bytes(self.samples, self.tokens, self.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRow:
    """An existing store near --out. `superseded` says why it looks so, or is empty; `in_use` names who has it open."""

    path: Path
    model: str
    layer_ids: tuple[int, ...]
    samples: int
    tokens: int
    disk_bytes: int
    freed_bytes: int
    written: str
    superseded: str
    in_use: str
    problem: str

    @property
    def can_go(self) -> bool:
        return bool(self.superseded) and not self.in_use


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomReport:
    """`stored_samples` and `stored_tokens` lie in a store at `out` already and need not be written again. `stores` are
    the others on its filesystem, largest first; `searched_all` is False where the search met its limit."""

    out: Path
    space: DiskSpace
    stored_samples: int
    stored_tokens: int
    verdict: Verdict
    stores: tuple[StoreRow, ...]
    searched_all: bool


def room_report(out: Path, job: Job, nearby: Nearby, sizes: Geometry) -> RoomReport:
    """Room for `job` at `out`, among the stores `nearby`. Raises StoreError."""
    space = disk_space(out)
    rows = store_rows(nearby.stores, out)
    there = stored_at(out)
    samples, tokens = _resumable(there, job, sizes)
    rest = Job(
        samples=job.samples - samples,
        tokens=job.tokens - tokens,
        size_bytes=job.size_bytes - job.size_bytes * tokens // max(1, job.tokens),
    )
    removable = [(str(row.path), row.freed_bytes) for row in rows if row.can_go]
    return RoomReport(
        out=out,
        space=space,
        stored_samples=samples,
        stored_tokens=tokens,
        verdict=judge(rest.disk_bytes, space.free_bytes, removable),
        stores=tuple(rows),
        searched_all=nearby.searched_all,
    )


def require_same_samples(out: Path, files: Sequence[Path], samples_files: Sequence[Path]) -> None:
    """Raise StoreError where the plan is for one samples file, as it is, and the store at `out` was made of another:
    `extract` would refuse it."""
    if len(files) != 1 or len(samples_files) != 1 or not (out / NAME).exists():
        return
    ours, theirs = SamplesFile(samples_files[0]).content_hash(), Manifest.load(out).samples_hash
    if ours != theirs:
        raise StoreError(
            f"{out} was made of samples with the hash {theirs}, {samples_files[0]} has {ours}; `extract` would refuse "
            "it; plan for the store's own samples or another --out"
        )


def stored_at(out: Path) -> FoundStore | None:
    """The store that is at `out` already. Raises StoreError when something else is."""
    if (out / NAME).exists():
        return look_at(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StoreError(f"{out} holds something else and no {NAME}; pass an empty or new folder with --out")
    return None


def store_rows(stores: Sequence[FoundStore], out: Path) -> list[StoreRow]:
    """The stores but for the one at `out`, largest first."""
    reasons = superseded(stores)
    rows = [_store_row(store, reasons.get(store.path, "")) for store in stores if store.path.resolve() != out.resolve()]
    return sorted(rows, key=lambda row: (-row.disk_bytes, str(row.path)))


def _store_row(store: FoundStore, reason: str) -> StoreRow:
    return StoreRow(
        path=store.path,
        model=store.manifest.model_name,
        layer_ids=store.manifest.layer_ids,
        samples=store.samples,
        tokens=store.tokens,
        disk_bytes=store.disk_bytes,
        freed_bytes=store.freed_bytes,
        written=store.written,
        superseded=reason,
        in_use=", ".join(map(str, users(store.path))) if reason else "",
        problem=store.problem,
    )


def _resumable(there: FoundStore | None, job: Job, sizes: Geometry) -> tuple[int, int]:
    """(samples, tokens) of the job that the store at --out holds. Raises StoreError where `extract` would refuse it."""
    if there is None:
        return 0, 0
    manifest = there.manifest
    if (manifest.hidden_size, manifest.layer_ids) != (sizes.hidden_size, sizes.layer_ids):
        raise StoreError(
            f"{there.path} holds layers {list(manifest.layer_ids)} of hidden size {manifest.hidden_size}, this plan is "
            f"for layers {list(sizes.layer_ids)} of hidden size {sizes.hidden_size}; `extract` would refuse it; plan "
            "for the store's layers or another --out"
        )
    return min(there.samples, job.samples), min(there.tokens, job.tokens)
