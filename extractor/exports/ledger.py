"""What an export wrote: a line for each file, by which a later run tells whole files from damaged and foreign ones."""

from __future__ import annotations

import contextlib
import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import xxhash

from extractor.errors import InputError, StoreError
from extractor.output import make_durable, sync_folder, writing
from extractor.store.part_files import file_checksum

NAME = "checksums.jsonl"

# Files are made durable and listed together, once they are this many or hold this much, while the next are converted.
# An export that is killed writes at most two such groups again.
_GROUP_FILES = 256
_GROUP_BYTES = 64 << 20


class Ledger:
    """`checksums.jsonl` of an export's folder: file, bytes, modification time in ns, xxh3. Appended to as files become
    durable, so that an export which is cut off knows what it has; a later line for a file holds instead of an earlier
    one. Leaving it as a context lists what was added last."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._entries = dict(_read(out / NAME))
        self._added: dict[str, dict[str, Any]] = {}
        self._waiting: dict[str, dict[str, Any]] = {}
        self._syncer = ThreadPoolExecutor(1, "export-sync")
        self._sync: Future[None] | None = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The error under way matters more than one about files that the next run would only write again."""
        with self._syncer, contextlib.suppress(StoreError) if kind else contextlib.nullcontext():
            self._start()
            self._finish()

    def lists(self, file: Path) -> bool:
        """Whether `file` was written and made durable, whatever became of it since."""
        return str(file) in self._entries

    def has_whole(self, file: Path) -> bool:
        """Whether `file`, relative to the folder, is as it was written. Bytes are read where the time differs only."""
        known = self._entries.get(str(file))
        try:
            status = (self._out / file).stat()
            if known is None or status.st_size != known["bytes"]:
                return False
            unchanged = status.st_mtime_ns == known["modified_ns"]
            return unchanged or file_checksum(self._out / file) == str(known["xxh3"])
        except OSError:
            return False

    def add(self, file: Path, data: bytes) -> None:
        """`data` is what was just written to `file`, relative to the folder. Raises StoreError."""
        with writing(self._out / file):
            modified = (self._out / file).stat().st_mtime_ns
        self._added[str(file)] = {"bytes": len(data), "modified_ns": modified, "xxh3": xxhash.xxh3_128_hexdigest(data)}
        held = sum(entry["bytes"] for entry in self._added.values())
        if len(self._added) >= _GROUP_FILES or held >= _GROUP_BYTES:
            self._start()

    def _start(self) -> None:
        """Have the added files made durable in the background, once those before them are."""
        self._finish()
        self._waiting, self._added = self._added, {}
        self._sync = self._syncer.submit(make_durable, [self._out / file for file in self._waiting])

    def _finish(self) -> None:
        """List the files that were given to the background, once they are durable. Raises StoreError."""
        if self._sync is None:
            return
        sync, self._sync = self._sync, None
        with writing(self._out):
            sync.result()
        lines = "".join(json.dumps({"file": file, **entry}) + "\n" for file, entry in self._waiting.items())
        if lines:
            with writing(self._out / NAME):
                # After a break that a cut line before it may lack.
                _append(self._out / NAME, f"\n{lines}".encode())
        self._entries |= self._waiting


def listed_bytes(folder: Path) -> dict[Path, tuple[int, str]]:
    """File -> (bytes, xxh3), as the ledger in `folder` lists them; empty where there is none. Raises InputError for one
    that can't be read: nothing would be left to tell damaged files by."""
    try:
        text = (folder / NAME).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(
            f"{folder / NAME} can't be read ({error}), and by it damaged files are told; make it readable, or remove "
            "it to have the files taken as they are"
        ) from error
    return {Path(file): (entry["bytes"], entry["xxh3"]) for file, entry in _entries(text)}


def _append(place: Path, data: bytes) -> None:
    with place.open("ab", buffering=0) as handle:
        while data:
            data = data[handle.write(data) or 0 :]
        os.fsync(handle.fileno())
    sync_folder(place.parent)


def _read(place: Path) -> list[tuple[str, dict[str, Any]]]:
    """What can be read; a damaged line only means that its file is written anew."""
    try:
        return _entries(place.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []


def _entries(text: str) -> list[tuple[str, dict[str, Any]]]:
    return [(entry["file"], entry) for entry in map(_parse, text.splitlines()) if entry]


def _parse(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    kinds = {"file": str, "bytes": int, "modified_ns": int, "xxh3": str}
    whole = isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in kinds.items())
    return entry if whole else None
