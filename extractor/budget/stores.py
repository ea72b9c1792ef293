"""Stores that lie on a filesystem already: what they hold, what they occupy, and which look superseded."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from extractor.disk import existing_parent
from extractor.errors import InputError, StoreError
from extractor.manifest import NAME, REMOVING, Manifest
from extractor.store import Store
from extractor.store.layout import DATA_FILE
from extractor.store_files import store_files

# A walk of 20,000 folders takes about a second on a warm disk; stores lie near --out, not deep in a home.
_MOST_FOLDERS = 20_000
_MOST_DEPTH = 4
INTERRUPTED = "its removal was interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStore:
    """One existing store. `samples` and `tokens` are the sealed ones; `stored_bytes` what their tiles hold, coded;
    `disk_bytes` what the folder occupies and `freed_bytes` what removing it gives back. `problem` says why something
    of it could not be read."""

    path: Path
    manifest: Manifest
    samples: int
    tokens: int
    stored_bytes: int
    disk_bytes: int
    freed_bytes: int
    written: str
    problem: str = ""

    @property
    def codec_ratio(self) -> float | None:
        """Stored / raw bytes of the tiles, where a codec was used."""
        raw = self.tokens * self.manifest.row_bytes
        return self.stored_bytes / raw if raw and self.manifest.codec != "none" else None


def look_at(path: Path) -> FoundStore:
    """What the store at `path` holds and occupies. Raises StoreError when it is none."""
    removing = not (path / NAME).exists() and (path / REMOVING).exists()
    manifest = Manifest.load(path, REMOVING if removing else NAME)
    samples, tokens, stored, problem = (0, 0, 0, INTERRUPTED) if removing else _content(path)
    try:
        files, _ = store_files(path)
    except OSError as error:
        raise StoreError(f"{path} can't be listed ({error}); check its permissions") from error
    # Not the locks and lists, which commands that change no sample touch too.
    lasting = [file.modified for file in files if file.path.name in (DATA_FILE, NAME, REMOVING)]
    return FoundStore(
        path=path,
        manifest=manifest,
        samples=samples,
        tokens=tokens,
        stored_bytes=stored,
        disk_bytes=sum(file.allocated_bytes for file in files),
        freed_bytes=sum(file.freed_bytes for file in files),
        written=datetime.fromtimestamp(max(lasting), UTC).isoformat(timespec="seconds"),
        problem=problem,
    )


def _content(path: Path) -> tuple[int, int, int, str]:
    """(samples, tokens, stored bytes, problem) of what can be read."""
    store = Store.quietly(path)
    problem = next((f"{shard} is left out: {error}" for shard, error in store.problems.items()), "")
    return len(store), int(store.lengths.sum()), int(store.stored_bytes.sum()), problem


@dataclass(frozen=True, slots=True)
class Nearby:
    """`searched_all` is False where the search met its limit before it had seen every folder."""

    stores: tuple[FoundStore, ...]
    searched_all: bool


def nearby_stores(out: Path | None, look: Sequence[Path]) -> Nearby:
    """The stores under the folders `look`; with none, on the filesystem of `out`."""
    roots = look or (roots_near(out) if out else ())
    missing = next((root for root in roots if not root.is_dir()), None)
    if missing is not None and not look:
        raise StoreError(f"{out} can't be made, because {missing} is a file; pass a folder with --out")
    if missing is not None:
        raise InputError(f"--look {missing} is no folder; name the folders that hold stores")
    return find_stores(roots)


def find_stores(roots: Sequence[Path], most_folders: int = _MOST_FOLDERS) -> Nearby:
    """The stores under `roots`, not crossing to another filesystem and not following links. What can't be read as a
    store of ours is passed over."""
    stores: dict[Path, FoundStore] = {}
    seen: set[tuple[int, int]] = set()
    for root in roots:
        for folder in _folders(root, seen, most_folders):
            if (folder / NAME).is_file() or (folder / REMOVING).is_file():
                try:
                    stores.setdefault(folder.resolve(), look_at(folder))
                except (StoreError, OSError):
                    continue
    return Nearby(tuple(stores.values()), len(seen) < most_folders)


def roots_near(out: Path) -> list[Path]:
    """Where to look: the folder that holds `out`, then its parents on the same filesystem, but never `/` itself."""
    start = existing_parent(out.resolve().parent)
    device = start.stat().st_dev
    same = [folder for folder in (start, *start.parents) if folder.stat().st_dev == device]
    return [folder for folder in same if folder != folder.parent] or [start]


def _folders(root: Path, seen: set[tuple[int, int]], most: int) -> Iterator[Path]:
    """Breadth first, so that what lies near is found before a limit is met."""
    queue = deque([(root, 0)])
    device = root.stat().st_dev
    while queue and len(seen) < most:
        folder, depth = queue.popleft()
        try:
            status = folder.stat()
            if status.st_dev != device or (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            yield folder
            if depth < _MOST_DEPTH and not (folder / NAME).is_file():
                queue.extend((child, depth + 1) for child in _children(folder))
        except OSError:
            continue


def _children(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")]
    return [folder / name for name in sorted(names)]


def superseded(stores: Sequence[FoundStore]) -> dict[Path, str]:
    """Why each store that looks superseded does: another holds the same samples of the same model, all its layers,
    and more samples or the same number written later."""
    reasons: dict[Path, str] = {}
    for store in stores:
        better = [other for other in stores if _supersedes(other, store)]
        if better:
            best = max(better, key=_rank)
            reasons[store.path] = (
                f"incomplete: {store.samples:,} samples, {best.path} has {best.samples:,}"
                if best.samples > store.samples
                else f"older than {best.path}, which holds the same samples"
            )
        elif store.problem == INTERRUPTED:
            reasons[store.path] = store.problem
    return reasons


def _supersedes(other: FoundStore, store: FoundStore) -> bool:
    a, b = other.manifest, store.manifest
    return (
        _values(a) == _values(b)
        and set(b.layer_ids) <= set(a.layer_ids)
        and not other.problem
        and _rank(other) > _rank(store)
    )


def _values(manifest: Manifest) -> tuple[object, ...]:
    """What decides the numbers in a store, but for which layers are kept: codecs, engines and versions do not."""
    options = sorted(manifest.options.items())
    return manifest.model_config_hash, manifest.model_dtype, manifest.samples_hash, manifest.dtype, options


def _rank(store: FoundStore) -> tuple[int, str, str]:
    return store.samples, store.written, str(store.path)
