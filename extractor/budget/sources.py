"""Which files belong to which source: a samples file, a token file, or a folder of datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from extractor.budget.records import EXPECTED
from extractor.budget.table_files import has_token_ids, read_arrow, read_parquet
from extractor.budget.tally import Tally
from extractor.budget.text_files import read_text
from extractor.errors import InputError, UsageError
from extractor.sizes import counted

_TEXT = (".jsonl", ".ndjson", ".json")
_TABLES = {".parquet": read_parquet, ".arrow": read_arrow}
_COMPRESSED = (".gz", ".zst", ".bz2", ".lz4")
# What `prepare` and `datasets` leave beside the data.
_SIDECARS = ("report.json", "rejects.jsonl", "dataset_info.json", "dataset_dict.json", "state.json", "config.json")
_SAMPLES = "samples.parquet"
_TOKENIZED = "tokenized_data"


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset: its name and its files. A samples file may name further sources in its rows."""

    name: str
    path: Path
    files: tuple[Path, ...]


def find_sources(paths: Sequence[Path]) -> list[Source]:
    """The sources under `paths`, in order. Raises UsageError or InputError naming the path that is none."""
    if not paths:
        raise UsageError("there is nothing to plan for; name dataset folders, samples files or token files")
    _check_distinct(paths)
    sources = [source for path in paths for source in _sources(path)]
    twice = {name for name, count in Counter(source.name for source in sources).items() if count > 1}
    return [replace(s, name=_longer_name(s)) if s.name in twice else s for s in sources]


def read_sources(sources: Sequence[Source]) -> Tally:
    """Read every file. Raises InputError for a source in which no record has a length."""
    tally = Tally()
    for source in sources:
        for file in source.files:
            before, rejected = tally.samples, tally.rejected
            _read(file, source.name, tally)
            if tally.samples == before:
                raise _empty(source, file, tally, rejected)
    return tally


def samples_files(sources: Sequence[Source]) -> list[Path]:
    """The files that can be read as samples files: Parquet with ids of samples and tokens."""
    return [file for source in sources for file in source.files if file.suffix == ".parquet" and has_token_ids(file)]


def _read(file: Path, source: str, tally: Tally) -> None:
    _TABLES.get(file.suffix, read_text)(file, source, tally)


def _empty(source: Source, file: Path, tally: Tally, rejected: int) -> InputError:
    count = tally.rejected - rejected
    if not count:
        return InputError(f"{file} (source {source.name}) holds no records; remove it or restore it, then plan again")
    last = tally.rejects[-1].reason if tally.rejects else "no length"
    return InputError(
        f"none of the {counted(count, 'record')} of {file} (source {source.name}) has a length; expected {EXPECTED}, "
        "but a record "
        f"{last}; tokenize it first (`extractor prepare`)"
    )


def _check_distinct(paths: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise UsageError(f"{path} is named twice and would be counted twice; name each path once")
        seen.add(path.resolve())


def _sources(path: Path) -> list[Source]:
    if path.is_file():
        return [Source(_stem(path), path, (path,))]
    if not path.is_dir():
        raise InputError(f"{path} does not exist; name dataset folders, samples files or token files")
    files = _data_files(path)
    here = [Source(path.resolve().name, path, files)] if files else []
    if here and files[0].name.startswith((_SAMPLES, _TOKENIZED)):
        return here
    below = [Source(folder.name, folder, _files_below(folder)) for folder in _folders(path)]
    if not here and not below:
        raise InputError(f"{path} holds no datasets; expected folders with tokenized_data.jsonl, or data files")
    return here + below


def _files_below(folder: Path) -> tuple[Path, ...]:
    files = _data_files(folder) or tuple(file for inner in _folders(folder) for file in _files_below(inner))
    if not files:
        raise InputError(
            f"dataset folder {folder} holds no data; expected tokenized_data.jsonl, or *.jsonl, *.json, *.parquet or "
            "*.arrow files; to leave it out, name the other folders one by one"
        )
    return files


def _data_files(folder: Path) -> tuple[Path, ...]:
    """`samples.parquet`, else `tokenized_data.*`, else every data file that is no sidecar, in the order of names."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and _is_data(file))
    for stem in (_SAMPLES, _TOKENIZED):
        named = tuple(file for file in files if file.name.startswith(stem))
        if named:
            return named
    return tuple(file for file in files if file.name not in _SIDECARS)


def _is_data(file: Path) -> bool:
    if file.name.startswith("."):
        return False
    unpacked = Path(file.stem).suffix if file.suffix in _COMPRESSED else file.suffix
    return file.suffix in _TABLES or unpacked in _TEXT


def _folders(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))


def _stem(file: Path) -> str:
    """A file's source name: its own, or its folder's where every dataset's file has the same name."""
    if file.name.startswith(_TOKENIZED):
        return file.resolve().parent.name
    return file.name.split(".")[0] or file.name


def _longer_name(source: Source) -> str:
    return f"{source.path.resolve().parent.name}/{source.name}"
