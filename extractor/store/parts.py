"""Shards that lie in other folders: a store may consist of parts, on the disks of the hosts that wrote them.

`parts.jsonl` beside the manifest names host and path of each. A part is a store of its own with the same manifest; its
shards are numbered from `first_shard` on, so that names are unique over all parts and newer parts sort last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from extractor.errors import StoreError
from extractor.manifest import NAME
from extractor.shell import shell_command
from extractor.store.disk import sync_folder, write_atomically

LIST = "parts.jsonl"
MARK = "part.json"
SHARDS_PER_PART = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`path` as seen on `host`; the folder's name is unique, so where it is visible it is this part."""

    host: str
    path: Path
    run_id: str
    first_shard: int

    @property
    def visible(self) -> bool:
        """Its files can be read from this host."""
        return (self.path / NAME).is_file()

    def __str__(self) -> str:
        return f"{self.host}:{self.path}"


def parts(store: Path) -> list[Part]:
    """The parts of `store`, oldest first. A last line without its end is a write that a crash cut off, and is ignored:
    nothing is sealed in a part before its line is durable."""
    try:
        lines = (store / LIST).read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [_parse(line, store / LIST) for line in lines]


def _parse(line: str, file: Path) -> Part:
    try:
        raw = json.loads(line)
        return Part(**{**raw, "path": Path(raw["path"]), "first_shard": int(raw["first_shard"])})
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{file} has the line {line!r}, which names no part ({error}); restore the file") from error


def add_part(store: Path, part: Part) -> None:
    """Append to the list, durably. One process at a time does so: the driver of a run."""
    known = parts(store)
    write_atomically(store / LIST, _text([*known, part]))


def drop_part(store: Path, part: Part) -> None:
    """Take a gathered part out of the list."""
    left = [other for other in parts(store) if other != part]
    if left:
        write_atomically(store / LIST, _text(left))
        return
    (store / LIST).unlink(missing_ok=True)
    sync_folder(store)


def _text(listed: Iterable[Part]) -> str:
    return "".join(json.dumps({**asdict(part), "path": str(part.path)}) + "\n" for part in listed)


def elsewhere(store: Path) -> list[Part]:
    """The parts whose files can't be read from this host."""
    return [part for part in parts(store) if not part.visible]


def require_all_here(store: Path, purpose: str) -> None:
    """Raise StoreError naming the parts that lie on other hosts."""
    away = elsewhere(store)
    if away:
        raise StoreError(
            f"{purpose} needs all of {store}, but {len(away)} of its parts lie on other hosts, {away[0]} for one; "
            f"collect them with `{shell_command('extractor', 'gather', store)}`"
        )


def mark_as_part(folder: Path, first_shard: int) -> None:
    """Make the store in `folder` number its shards from `first_shard` on."""
    write_atomically(folder / MARK, json.dumps({"first_shard": first_shard}) + "\n")


def first_shard_number(store: Path) -> int:
    """The lowest number that a new shard of `store` may have, whatever lies in parts that can't be seen from here."""
    mark = store / MARK
    if mark.is_file():
        try:
            return int(json.loads(mark.read_text(encoding="utf-8"))["first_shard"])
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(
                f"{mark} says nothing of this part's first shard ({error!r}); restore it from the line of the store's "
                f"{LIST} that names this folder"
            ) from error
    return max((part.first_shard + SHARDS_PER_PART for part in parts(store)), default=0)
