"""The folder of an export: claimed by a marker, filled file by file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from extractor.disk import require_room
from extractor.errors import StoreError
from extractor.exports.format import Format, Record
from extractor.store import Store

MARKER = "export.json"


def claim(out: Path, about: dict[str, Any], need_bytes: int, force: bool) -> None:
    """Make `out` this export's own, or make sure that it is. Raises StoreError when it is something else's, and
    DiskFullError when `need_bytes` do not fit a new one."""
    if (out / MARKER).is_file():
        _require_same(json.loads((out / MARKER).read_text(encoding="utf-8")), about, out)
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StoreError(f"{out} holds something else and no {MARKER}; pass an empty or new folder with --out")
    require_room(out, need_bytes, force)
    out.mkdir(parents=True, exist_ok=True)
    _replace(out / MARKER, json.dumps(about, indent=2) + "\n")


def _require_same(found: dict[str, Any], about: dict[str, Any], out: Path) -> None:
    differing = [
        f"{key}: there {found.get(key)!r}, now {about[key]!r}" for key in about if found.get(key) != about[key]
    ]
    if differing:
        raise StoreError(
            f"{out} is another export ({'; '.join(differing)}); its files can't be mixed with this one's; pass a new "
            "folder with --out"
        )


def write(form: Format, record: Record, target: Path) -> int:
    """Bytes of the new file, which appears whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        _save(form, record, temporary)
        size = temporary.stat().st_size
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return size


def _save(form: Format, record: Record, file: Path) -> None:
    """Raises StoreError for what keeps the file from being written. torch and safetensors hide the system's reason."""
    content = form.content(record)
    try:
        form.save(content, file)
    except (RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(
            f"{file.parent} took no file of sample {record.sample_id!r} ({reason}); free some space, check its "
            "permissions and `ulimit -f`, then run the same command again: whole files stay"
        ) from error


def list_files(form: Format, store: Store, out: Path) -> None:
    """samples.jsonl: which file holds which sample."""
    lines = (
        json.dumps({"file": str(form.path(number, sample_id)), "sample_id": sample_id, "num_tokens": int(tokens)})
        for number, (sample_id, tokens) in enumerate(zip(store, store.lengths, strict=True))
    )
    _replace(out / "samples.jsonl", "".join(line + "\n" for line in lines))


def _replace(file: Path, text: str) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
