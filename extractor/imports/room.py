"""Whether an import fits its disk, told from the files' sizes before any but the first is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from extractor.disk import require_room, store_bytes
from extractor.imports.checks import Sound
from extractor.manifest import NAME, Manifest
from extractor.store import Store


def require_import_room(out: Path, manifest: Manifest, files: Sequence[Path], first: Sound, force: bool) -> None:
    """Raises DiskFullError when what `out` still lacks of the files would not fit."""
    require_room(out, needed_bytes(out, manifest, files, first), force)


def needed_bytes(out: Path, manifest: Manifest, files: Sequence[Path], first: Sound) -> int:
    """An upper bound: every byte of the files counts as part of a state of the first one's width and dtype, though some
    are ids, masks and headers. What the store holds already is taken off."""
    samples = len(files)
    tokens = sum(file.stat().st_size for file in files if file.is_file()) // first.file_bytes_per_token
    if (out / NAME).is_file():
        store = Store.quietly(out)
        samples, tokens = max(0, samples - len(store)), max(0, tokens - int(store.lengths.sum()))
    return store_bytes(samples, tokens, tokens * manifest.row_bytes)
