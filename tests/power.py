"""What a power cut would leave: content that was synced after its last change, under names that were synced later."""

from __future__ import annotations

import os
import stat


class Survivors:
    """Watches os.fsync from now on. `lost(folder)`: files below it that a power cut now would lose or damage."""

    def __init__(self, monkeypatch):
        self._contents = set()
        self._names = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._watched)

    def lost(self, folder):
        return sorted(
            str(path.relative_to(folder))
            for path in folder.rglob("*")
            if path.is_file() and not self._keeps(path, folder)
        )

    def _watched(self, descriptor):
        self._fsync(descriptor)
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(descriptor) as entries:
                self._names[status.st_ino] = {entry.name: entry.inode() for entry in entries}
        else:
            self._contents.add(_content(status))

    def _keeps(self, path, top):
        if path == top:
            return True
        status = path.stat()
        named = self._names.get(path.parent.stat().st_ino, {}).get(path.name) == status.st_ino
        return named and (path.is_dir() or _content(status) in self._contents) and self._keeps(path.parent, top)


def _content(status):
    return status.st_ino, status.st_size, status.st_mtime_ns
