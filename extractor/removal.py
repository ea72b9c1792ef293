"""`remove`: delete a store, all of it and nothing else, in a way that can be interrupted and repeated.

The manifest is renamed first, so that nothing opens half a store, and deleted last, so that what is left is still
known to be one. Every name is resolved relative to an open folder and never through a link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from extractor.disk import free_bytes
from extractor.errors import StoreError
from extractor.manifest import NAME, REMOVING, Manifest
from extractor.store_files import StoreFile, store_files, store_folders
from extractor.store_users import User, users

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Removable:
    """What would go: `files` are the store's own, `foreign` stays. `users` have it open; then nothing may go."""

    path: Path
    manifest: Manifest
    files: tuple[StoreFile, ...]
    foreign: tuple[Path, ...]
    users: tuple[User, ...]
    begun: bool

    @property
    def size_bytes(self) -> int:
        """Allocated on disk, not the length of sparse files."""
        return sum(file.allocated_bytes for file in self.files)

    @property
    def freed_bytes(self) -> int:
        return sum(file.freed_bytes for file in self.files)

    @property
    def modified(self) -> float:
        """Seconds since the epoch of the last write."""
        return max(file.modified for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """`freed_bytes`: the blocks of the files that went. `free_before_bytes`, `free_after_bytes`: what the filesystem
    said around it, with whatever others wrote meanwhile."""

    path: Path
    files: int
    freed_bytes: int
    free_before_bytes: int
    free_after_bytes: int
    kept: tuple[Path, ...]


def removable(path: Path | str) -> Removable:
    """Look at the store at `path`, deleting nothing. Raises StoreError when it is none, or is reached by a link."""
    path = Path(path)
    os.close(_open_store(path))
    begun = not (path / NAME).exists() and (path / REMOVING).exists()
    name = REMOVING if begun else NAME
    manifest = Manifest.load(path, name)
    if (path / name).is_symlink():
        raise StoreError(f"{path / name} is a link, so {path} only looks like a store; nothing was removed")
    try:
        files, foreign = store_files(path)
    except OSError as error:
        raise StoreError(f"{path} can't be listed ({error}); check its permissions") from error
    return Removable(
        path=path,
        manifest=manifest,
        files=tuple(files),
        foreign=tuple(foreign),
        users=tuple(users(path)),
        begun=begun,
    )


def remove(path: Path | str, progress: Callable[[StoreFile], None] | None = None) -> Removed:
    """Delete the store at `path`. Raises StoreError when it is in use, is no store, or a file can't be deleted; what
    is left then is still a store being removed, and the same call goes on."""
    store = removable(path)
    before = free_bytes(store.path)
    folder = _open_store(store.path)
    try:
        _begin(folder, store)
        freed = _delete(folder, store, progress)
    except OSError as error:
        raise StoreError(
            f"{store.path} could only be removed in part ({error}); correct the cause, then run the same command again"
        ) from error
    finally:
        os.close(folder)
    gone = _remove_folder(store.path)
    return Removed(
        path=store.path,
        files=len(store.files),
        freed_bytes=freed,
        free_before_bytes=before,
        free_after_bytes=free_bytes(store.path),
        kept=() if gone else tuple(sorted(child.relative_to(store.path) for child in store.path.iterdir())),
    )


def require_unused(store: Removable) -> None:
    """Raise StoreError naming the processes that have the store open."""
    if store.users:
        raise StoreError(
            f"{store.path} is open in {', '.join(map(str, store.users))}; a store in use can't be removed; wait for "
            "them, or stop them, and run the same command again"
        )


def _open_store(path: Path) -> int:
    """A descriptor of the folder itself, so that no later change of a name leads elsewhere."""
    try:
        return os.open(path, _FOLDER)
    except FileNotFoundError:
        raise StoreError(f"store {path} does not exist; nothing was removed") from None
    except OSError as error:
        what = "is a link" if path.is_symlink() else f"can't be opened as a folder ({error.strerror})"
        raise StoreError(
            f"{path} {what}; only a store's own folder can be removed; pass the folder's real path"
        ) from error


def _begin(folder: int, store: Removable) -> None:
    """Make the store unopenable, then look again for those who opened it in between."""
    require_unused(store)
    if store.begun:
        return
    os.rename(NAME, REMOVING, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)
    late = removable(store.path)
    if late.users:
        os.rename(REMOVING, NAME, src_dir_fd=folder, dst_dir_fd=folder)
        require_unused(late)


def _delete(folder: int, store: Removable, progress: Callable[[StoreFile], None] | None) -> int:
    """Delete the files, largest worth first, the manifest last; returns the bytes of those that went."""
    freed = 0
    for file in sorted(store.files, key=lambda f: (f.path.name in (NAME, REMOVING), -f.freed_bytes)):
        name = Path(REMOVING) if file.path.name == NAME else file.path
        if name.name == REMOVING:
            _remove_folders(folder, store.path)
        if _unlink(folder, name):
            freed += file.freed_bytes
        if progress:
            progress(file)
    return freed


def _unlink(folder: int, name: Path) -> bool:
    """Delete the regular file `name` (at most one folder deep); False when it is already gone or no file any more."""
    if len(name.parts) == 1:
        return _unlink_in(folder, name.name)
    try:
        inner = os.open(name.parts[0], _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        return False
    try:
        return _unlink_in(inner, name.name)
    finally:
        os.close(inner)


def _unlink_in(folder: int, name: str) -> bool:
    try:
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return False
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def _remove_folders(folder: int, store: Path) -> None:
    """The store's own folders, where nothing else lies in them."""
    for name in store_folders(store):
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


def _remove_folder(store: Path) -> bool:
    try:
        store.rmdir()
    except OSError:
        return False
    return True
