"""Paths and recipes -> named sources with their files, in an order that does not depend on the disk."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from extractor.errors import InputError, UsageError
from extractor.prepare.recipe import Entry, read_recipe

_DATA_SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet", ".arrow")
_PACKED_SUFFIXES = (".gz", ".zst", ".zstd")
_RECIPE_SUFFIXES = (".yaml", ".yml")
_DATASET_MARKS = ("dataset_info.json", "dataset_dict.json", "state.json")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """`name` is the file's path within its source, the same on every machine."""

    path: Path
    name: str


@dataclass(frozen=True, slots=True)
class Source:
    """Files whose records are counted, named and drawn together."""

    name: str
    files: tuple[SourceFile, ...]
    entry: Entry = field(default_factory=Entry)


def find_sources(data: Iterable[str]) -> list[Source]:
    """All sources, sorted by name. Raises InputError for a path without data, UsageError for a name given twice."""
    sources = _with_unique_names([source for path in data for source in _expand(Path(path))])
    return sorted(sources, key=lambda source: source.name)


def _expand(path: Path) -> Iterator[Source]:
    if path.suffix in _RECIPE_SUFFIXES:
        for entry in read_recipe(path):
            yield Source(entry.name, _named_together(path.parent, entry.paths), entry)
    else:
        yield Source(_stem(path), tuple(_files(path)))


def _named_together(base: Path, patterns: Iterable[str]) -> tuple[SourceFile, ...]:
    """The files of one recipe source, each once, named by their paths below the folder that holds them all."""
    paths = sorted({file.path.absolute() for pattern in patterns for file in _matches(base, pattern)})
    common = Path(os.path.commonpath([path.parent for path in paths]))
    return tuple(SourceFile(path, path.relative_to(common).as_posix()) for path in paths)


def _matches(base: Path, pattern: str) -> list[SourceFile]:
    """Files of a recipe's path, which may be absolute, hold wildcards, or name a folder."""
    full = base / pattern
    if full.exists():
        return list(_files(full))
    found = sorted(
        Path(full.anchor).glob(str(full.relative_to(full.anchor))) if full.is_absolute() else base.glob(pattern)
    )
    if not found:
        raise InputError(
            f"nothing matches {pattern!r} in the recipe (looked from {base}); name an existing file or folder"
        )
    return [file for path in found for file in _files(path)]


def _files(path: Path) -> Iterator[SourceFile]:
    if path.is_file():
        yield SourceFile(path, path.name)
        return
    if not path.is_dir():
        raise InputError(f"{path} does not exist; name a data file, a folder or a recipe (.yaml)")
    found = sorted(file for file in path.rglob("*") if file.is_file() and _is_data(file))
    if not found:
        raise InputError(f"{path} holds no data files; known are {', '.join(_DATA_SUFFIXES)}, also with .gz or .zst")
    for file in found:
        yield SourceFile(file, file.relative_to(path).as_posix())


def _is_data(file: Path) -> bool:
    packed = file.suffix in _PACKED_SUFFIXES
    suffix = Path(file.stem).suffix if packed else file.suffix
    return suffix in _DATA_SUFFIXES and file.name not in _DATASET_MARKS and not file.name.startswith(".")


def _stem(path: Path) -> str:
    name = path.resolve().name if path.name in ("", ".", "..") else path.name
    for suffix in (*_PACKED_SUFFIXES, *_DATA_SUFFIXES):
        name = name.removesuffix(suffix)
    return name


def _with_unique_names(sources: list[Source]) -> list[Source]:
    """Sources of one name get their folder's name before it; a path given twice is an error."""
    counts = Counter(source.name for source in sources)
    named = [
        replace(source, name=f"{source.files[0].path.resolve().parent.name}/{source.name}")
        if counts[source.name] > 1 and not source.entry.paths
        else source
        for source in sources
    ]
    twice = [name for name, count in Counter(source.name for source in named).items() if count > 1]
    if twice:
        paths = ", ".join(str(source.files[0].path) for source in named if source.name == twice[0])
        raise UsageError(
            f"the samples of {paths} would all be named {twice[0]!r}; pass each file once, or give the sources "
            "different names in a recipe (.yaml)"
        )
    return named
