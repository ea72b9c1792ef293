"""What an export wrote: a line for each file, by which a later run tells whole files from damaged and foreign ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import xxhash

from extractor.output import writing
from extractor.store.part_files import file_checksum

NAME = "checksums.jsonl"


class Ledger:
    """`checksums.jsonl` of an export's folder: file, bytes, modification time in ns, xxh3. Appended to as files appear,
    so that an export which is cut off knows what it has; a later line for a file holds instead of an earlier one."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._entries = dict(_read(out / NAME))

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
        place = self._out / NAME
        with writing(place):
            modified = (self._out / file).stat().st_mtime_ns
            entry = {"bytes": len(data), "modified_ns": modified, "xxh3": xxhash.xxh3_128_hexdigest(data)}
            # One write of a line of its own, after a break that a cut line before it may lack.
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.write(descriptor, f"\n{json.dumps({'file': str(file), **entry})}\n".encode())
            finally:
                os.close(descriptor)
        self._entries[str(file)] = entry


def _read(place: Path) -> list[tuple[str, dict[str, Any]]]:
    """What can be read; a damaged line only means that its file is written anew."""
    try:
        lines = place.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [(entry["file"], entry) for entry in map(_parse, lines) if entry]


def _parse(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(entry, dict) and entry.keys() >= {"file", "bytes", "modified_ns", "xxh3"}
    return entry if whole else None
