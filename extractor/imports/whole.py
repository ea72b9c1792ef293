"""Files that an export of this project listed must still hold the bytes that it wrote."""

from __future__ import annotations

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
