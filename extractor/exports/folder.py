"""The folder of an export: claimed by a marker, filled file by file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from extractor.disk import require_room
from extractor.errors import InputError, StoreError
from extractor.exports.format import Format, Record
from extractor.exports.ledger import Ledger
from extractor.output import write_early, write_whole, writing
from extractor.store import Store

MARKER, LIST = "export.json", "samples.jsonl"


def claim(out: Path, about: dict[str, Any], need_bytes: int, force: bool) -> None:
    """Make `out` this export's own, or make sure that it is. Raises StoreError when it is something else's, and
    DiskFullError when the `need_bytes` that it lacks do not fit."""
    if (out / MARKER).is_file():
        _require_same(read_marker(out), about, out)
        require_room(out, need_bytes, force)
        return
    with writing(out):
        used = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if used:
        raise StoreError(f"{out} holds something else and no {MARKER}; pass an empty or new folder with --out")
    require_room(out, need_bytes, force)
    write_whole(out / MARKER, (json.dumps(about, indent=2) + "\n").encode())


def read_marker(folder: Path) -> dict[str, Any]:
    """What `export.json` says of the export in `folder`. Raises StoreError when it can't be read."""
    try:
        about = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{folder / MARKER} can't be read ({error}), so nobody can say what the files beside it are; export anew "
            "into another folder"
        ) from error
    if not isinstance(about, dict):
        raise StoreError(f"{folder / MARKER} is not an export's description; export anew into another folder")
    return about


def _require_same(found: dict[str, Any], about: dict[str, Any], out: Path) -> None:
    differing = [
        f"{key}: there {found.get(key)!r}, now {about[key]!r}" for key in about if found.get(key) != about[key]
    ]
    if differing:
        raise StoreError(
            f"{out} is another export ({'; '.join(differing)}); its files can't be mixed with this one's; pass a new "
            "folder with --out"
        )


def write(form: Format, record: Record, out: Path, file: Path, ledger: Ledger) -> int:
    """Bytes of the new file `out / file`: it appears whole, and lasts when the ledger lists it. Raises StoreError."""
    data = form.pack(form.content(record))
    write_early(out / file, data)
    ledger.add(file, data)
    return len(data)


def list_files(form: Format, store: Store, out: Path) -> None:
    """`samples.jsonl`: which file holds which sample."""
    lines = (
        json.dumps({"file": str(form.path(number, sample_id)), "sample_id": sample_id, "num_tokens": int(tokens)})
        for number, (sample_id, tokens) in enumerate(zip(store, store.lengths, strict=True))
    )
    write_whole(out / LIST, "".join(line + "\n" for line in lines).encode())


def listed_ids(folder: Path) -> dict[Path, str]:
    """File -> sample id, as the `samples.jsonl` in `folder` lists them; empty where there is none, or one of another
    kind. Raises InputError for one that is damaged: without it, samples would get other ids."""
    try:
        lines = (folder / LIST).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    entries = [_listed(line) for line in lines]
    ids = dict(entry for entry in entries if entry)
    if ids and None in entries:
        raise InputError(
            f"line {entries.index(None) + 1} of {folder / LIST} is damaged, and the file says which sample is in which "
            "file; run the export again, or remove it to have samples named after their files"
        )
    return ids


def _listed(line: str) -> tuple[Path, str] | None:
    try:
        entry = json.loads(line)
        file, sample_id = entry["file"], entry["sample_id"]
    except (ValueError, KeyError, TypeError):
        return None
    return (Path(file), sample_id) if isinstance(file, str) and isinstance(sample_id, str) else None
