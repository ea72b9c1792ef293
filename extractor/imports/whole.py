"""Files that an export of this project listed must still hold the bytes that it wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from extractor.exports.ledger import NAME, listed_bytes
from extractor.imports.format import BadRecordError, Foreign, Source
from extractor.store.part_files import file_checksum


def reading_whole(sources: list[Source], folder: Path) -> list[Source]:
    """The same sources; those whose file the folder's ledger lists reject it where its bytes are others. Time and size
    that agree prove nothing: a disk that loses bits changes neither. Raises InputError for a ledger that is there and
    can't be read."""
    listed = listed_bytes(folder)
    return [
        replace(source, read=partial(_read, source, folder / source.file, *listed[source.file]))
        if source.file in listed
        else source
        for source in sources
    ]


def missing(sources: list[Source], listed: Mapping[Path, str], folder: Path) -> list[Source]:
    """What the folder's own list of samples (file -> id) has and the folder has not: each rejects itself."""
    there = {source.file for source in sources}
    return [
        Source(str(file), file, sample_id, partial(_missing, file))
        for file, sample_id in listed.items()
        if file not in there and not (folder / file).exists()
    ]


def _missing(file: Path) -> Foreign:
    raise BadRecordError(f"{file} is listed beside the files and is not there; copy or export it anew")


def _read(source: Source, file: Path, size: int, checksum: str) -> Foreign:
    _require_bytes(file, size, checksum)
    return source.read()


def _require_bytes(file: Path, size: int, checksum: str) -> None:
    try:
        found = file.stat().st_size
        same = found == size and file_checksum(file) == checksum
    except OSError as error:
        raise BadRecordError(f"can't be read ({error})") from error
    if not same:
        what = f"{found:,} bytes; {size:,} are expected" if found != size else "its checksum is another"
        raise BadRecordError(f"damaged: it is not what {NAME} says was written ({what}); export or copy it anew")
