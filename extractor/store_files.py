"""Which files in a store's folder are the store's own, found without following a link."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from extractor.import_record import NAME as IMPORT
from extractor.manifest import NAME as MANIFEST
from extractor.manifest import REMOVING
from extractor.store.layout import DATA_FILE, LOCK_FILE
from extractor.store.parts import LIST as PARTS
from extractor.store.parts import MARK as PART
from extractor.store.rejects import NAME as REJECTS

SHARD_LIST = "shards.txt"
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the filesystem's is
_IMPORT_REJECTS = "import-rejects.jsonl"
_NAMED = "|".join(map(re.escape, (MANIFEST, SHARD_LIST, REJECTS, PARTS, PART, IMPORT, _IMPORT_REJECTS)))
# The named files, those that a crash left half written beside them (.NAME.PID), and writers' locks.
_TOP = re.compile(rf"({_NAMED})|{re.escape(REMOVING)}|\.({_NAMED})\.\d+|\.writer-.+-\d+")
_SHARD = re.compile(r"(\.gather-|\.gone-)?shard-\d{4,}|\.new-.+-\d+-\d+")
_SHARD_FILE = re.compile(rf"{re.escape(DATA_FILE)}|{re.escape(LOCK_FILE)}")
_RUNS = re.compile(r"runs")
_RUN_FILE = re.compile(r".+\.(json|jsonl)(\.\d+)?|.+\.rank-\d+\.error(\.\d+)?|\.driver-.+")
_FOLDERS = ((_SHARD, _SHARD_FILE), (_RUNS, _RUN_FILE))


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A regular file of the store: `path` relative to it, and what it occupies. `links` counts its names."""

    path: Path
    allocated_bytes: int
    links: int
    modified: float

    @property
    def freed_bytes(self) -> int:
        """What deleting this name gives back: nothing while the file has another name."""
        return self.allocated_bytes if self.links == 1 else 0


def store_files(store: Path) -> tuple[list[StoreFile], list[Path]]:
    """(the store's own files, whatever else lies there: paths relative to `store`). Raises OSError."""
    own: list[StoreFile] = []
    foreign: list[Path] = []
    for entry in _entries(store):
        pattern = next((inner for outer, inner in _FOLDERS if outer.fullmatch(entry.name)), None)
        if pattern is not None and entry.is_dir(follow_symlinks=False):
            for inner in _entries(Path(entry.path)):
                _sort_in(inner, pattern, Path(entry.name), own, foreign)
        else:
            _sort_in(entry, _TOP, Path(), own, foreign)
    return own, foreign


def store_folders(store: Path) -> list[str]:
    """Names of the folders inside that are the store's own."""
    return [e.name for e in _entries(store) if e.is_dir(follow_symlinks=False) and is_store_folder(e.name)]


def is_store_folder(name: str) -> bool:
    return any(outer.fullmatch(name) for outer, _ in _FOLDERS)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _sort_in(
    entry: os.DirEntry[str], pattern: re.Pattern[str], folder: Path, own: list[StoreFile], foreign: list[Path]
) -> None:
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISREG(status.st_mode) and pattern.fullmatch(entry.name):
        own.append(StoreFile(folder / entry.name, status.st_blocks * _BLOCK_BYTES, status.st_nlink, status.st_mtime))
    else:
        foreign.append(folder / entry.name)
