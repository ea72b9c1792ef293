"""`extractor remove`: delete a store after showing what it is."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extractor.errors import UsageError
from extractor.sizes import counted

if TYPE_CHECKING:
    from extractor.removal import Removable, Removed

HELP = "delete a store: its own files only, after showing what it is"
EXAMPLE = "extractor remove old-store"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, metavar="STORE", help="the store's folder")
    parser.add_argument("--yes", action="store_true", help="do not ask for the store's name")
    parser.add_argument("--json", action="store_true", help="print one JSON document of what was removed")


def run(args: argparse.Namespace) -> int:
    from extractor.removal import removable, remove, require_unused

    store = removable(args.store)
    _show(store)
    require_unused(store)
    if not args.yes and not _confirmed(args.store):
        print("nothing was removed", file=sys.stderr)
        return 1
    removed = remove(args.store)
    print(json.dumps(_as_json(removed), indent=1) if args.json else _report(removed))
    return 0


def _show(store: Removable) -> None:
    """On stderr: stdout carries the result."""
    from extractor.sizes import size
    from extractor.store.parts import parts

    manifest = store.manifest
    lines = [
        f"store      {store.path.absolute()}{' (a removal was interrupted)' if store.begun else ''}",
        f"model      {manifest.model_name}, layers {', '.join(map(str, manifest.layer_ids))}, {manifest.dtype}",
        f"created    {manifest.created}, last written {_time(store.modified)}",
        f"size       {size(store.size_bytes)} on disk ({store.size_bytes:,} bytes) in "
        f"{counted(len(store.files), 'file')}",
    ]
    if store.freed_bytes < store.size_bytes:
        lines.append(f"frees      {size(store.freed_bytes)}: some files have other names (hard links)")
    if not store.begun:
        lines.append(f"holds      {_content(store.path)}")
    lines += [f"not ours   {path} stays" for path in store.foreign]
    lines += [f"elsewhere  {part} stays: a part of this store; remove it on its host" for part in parts(store.path)]
    print("\n".join(lines), file=sys.stderr)


def _content(path: Path) -> str:
    from extractor.budget.stores import look_at

    found = look_at(path)
    problem = f"; {found.problem}" if found.problem else ""
    return f"{counted(found.samples, 'sample')}, {counted(found.tokens, 'token')}{problem}"


def _confirmed(path: Path) -> bool:
    name = path.absolute().name
    print(f"This can't be undone. Type the store's name ({name}) to remove it: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        raise UsageError(f"nobody answered, so {path} stays; pass --yes to remove it without a question")
    return answer.strip() == name


def _report(removed: Removed) -> str:
    from extractor.sizes import size

    measured = removed.free_after_bytes - removed.free_before_bytes
    text = (
        f"removed {removed.path}: {counted(removed.files, 'file')}, {removed.freed_bytes:,} bytes "
        f"({size(removed.freed_bytes)}) "
        f"freed; free space went from {size(removed.free_before_bytes)} to {size(removed.free_after_bytes)} "
        f"({measured:+,} bytes, with what others wrote meanwhile)"
    )
    kept = [f"kept, not a store's: {removed.path / path}" for path in removed.kept]
    return "\n".join([text, *kept])


def _as_json(removed: Removed) -> dict[str, Any]:
    return {
        "path": str(removed.path),
        "files": removed.files,
        "freed_bytes": removed.freed_bytes,
        "free_before_bytes": removed.free_before_bytes,
        "free_after_bytes": removed.free_after_bytes,
        "kept": [str(path) for path in removed.kept],
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
