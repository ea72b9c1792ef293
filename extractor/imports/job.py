"""`import_folder`: another project's files -> a store, with the statistics and checksums that they lack."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from extractor.errors import InputError, UsageError
from extractor.exports.folder import listed_ids
from extractor.import_record import ImportRecord
from extractor.imports.checks import Sound, read_sound, require_fit
from extractor.imports.format import BadRecordError, Importer, Source
from extractor.imports.room import require_import_room
from extractor.imports.target import DTYPES, ImportOptions, target_manifest
from extractor.imports.whole import missing, reading_whole
from extractor.manifest import Manifest
from extractor.ops import gather_rows
from extractor.output import write_whole
from extractor.packing import Ints
from extractor.record import stats_from_counts
from extractor.store import ShardWriter, Store, prepare_store
from extractor.store.lock import RunLock

FORMATS = {"speculators": "speculators", "specforge": "specforge", "modelopt": "modelopt", "safetensors": "plain"}
REJECTS = "import-rejects.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSummary:
    """`rejected` files are listed in `rejects_file`; `saturated` values were beyond the stored dtype's range."""

    format: str
    out: str
    layer_ids: list[int]
    dtype: str
    samples: int
    tokens: int
    already_stored: int
    rejected: int
    rejects_file: str | None
    saturated: int
    inf: int
    nan: int
    note: str

    @property
    def exit_code(self) -> int:
        """3 when a file was rejected or a value is not as it was or not finite, else 0."""
        return 3 if self.rejected or self.saturated or self.inf or self.nan else 0


def import_folder(
    folder: Path | str,
    form: str,
    out: Path | str,
    options: ImportOptions,
    report: Callable[[int, int], None] | None = None,
) -> ImportSummary:
    """Store every readable sample of `folder` that the store lacks; `report(done, total)` after each.

    A file that is damaged, gone, not what the export beside it listed, or unlike the others is rejected and listed.
    Raises UsageError for an unknown format, layers or dtype, InputError when nothing can be read, FingerprintError when
    `out` is a store of something else, StoreError when another process is changing it, DiskFullError before anything is
    written when it would not fit.
    """
    importer = find_importer(form)
    if not Path(folder).is_dir():
        raise InputError(f"{folder} is no folder; pass the one that holds the files of {form}")
    folder, out = Path(folder), Path(out)
    sources, listed = reading_whole(importer.find(folder), folder), listed_ids(folder)
    first = _first(sources, listed, folder, importer, options)
    sources += missing(sources, listed, folder)
    manifest = target_manifest(importer.name, folder, sources, first, options)
    require_import_room(out, manifest, [folder / source.file for source in sources], first, options.force)
    with RunLock(prepare_store(out, manifest).path, shared=False):
        job = _Job(prepare_store(out, manifest), manifest, listed, options)  # what is there once it can't change
        # Before the first sample: an import that is cut off must not look like one of fewer files.
        ImportRecord(len(sources), None).save(out)
        with ShardWriter(out, run_id=f"import-{secrets.token_hex(4)}", writer=0) as writer:
            for number, source in enumerate(sources):
                job.take(source, writer)
                if report:
                    report(number + 1, len(sources))
        summary = job.summary(importer)
        ImportRecord(len(sources), summary.rejected).save(out)
        return summary


def find_importer(name: str) -> Importer:
    """Raises UsageError for an unknown one."""
    if name not in FORMATS:
        raise UsageError(f"there is no import format {name!r}; {', '.join(FORMATS)} are there; pass one with --from")
    importer: Importer = import_module(f"extractor.imports.{FORMATS[name]}").IMPORTER
    return importer


class _Job:
    """Counts and rejects of one import."""

    def __init__(self, store: Store, manifest: Manifest, listed: dict[Path, str], options: ImportOptions) -> None:
        self._store, self._manifest, self._listed, self._options = store, manifest, listed, options
        self._seen: set[str] = set()
        self._rejects: list[dict[str, str]] = []
        self._samples = self._tokens = self._kept = 0
        self._values = np.zeros(3, np.int64)  # saturated, inf, NaN

    def take(self, source: Source, writer: ShardWriter) -> None:
        try:
            sample = read_sound(source, self._listed.get(source.file), self._options.pad_token)
            if sample.sample_id in self._store:
                self._kept += 1
                return
            self._check(sample)
        except BadRecordError as error:
            self._rejects.append({"file": source.name, "reason": str(error)})
            return
        self._values += _store(sample, self._manifest, writer)
        self._seen.add(sample.sample_id)
        self._samples += 1
        self._tokens += len(sample.token_ids)

    def summary(self, importer: Importer) -> ImportSummary:
        rejects = self._store.path / REJECTS if self._rejects else None
        if rejects is None:
            (self._store.path / REJECTS).unlink(missing_ok=True)
        else:
            write_whole(rejects, "".join(json.dumps(reject) + "\n" for reject in self._rejects).encode())
        return ImportSummary(
            format=importer.name,
            out=str(self._store.path),
            layer_ids=list(self._manifest.layer_ids),
            dtype=self._manifest.dtype,
            samples=self._samples,
            tokens=self._tokens,
            already_stored=self._kept,
            rejected=len(self._rejects),
            rejects_file=None if rejects is None else str(rejects),
            saturated=int(self._values[0]),
            inf=int(self._values[1]),
            nan=int(self._values[2]),
            note=importer.note,
        )

    def _check(self, sample: Sound) -> None:
        require_fit(sample, self._manifest)
        if sample.sample_id in self._seen:
            raise BadRecordError(f"sample id {sample.sample_id!r} stands in an earlier file")


def _first(
    sources: list[Source], listed: dict[Path, str], folder: Path, importer: Importer, options: ImportOptions
) -> Sound:
    """The first sample that can be stored: it decides dtype, width and number of states."""
    reasons = []
    for source in sources:
        try:
            return read_sound(source, listed.get(source.file), options.pad_token)
        except BadRecordError as error:
            reasons.append(f"{source.name}: {error}")
    if not reasons:
        raise InputError(f"{folder} holds no files of {importer.name}; check the folder and --from")
    raise InputError(f"none of the {len(reasons)} files of {folder} can be read; the first: {reasons[0]}")


def _store(sample: Sound, manifest: Manifest, writer: ShardWriter) -> Ints:
    """Write and seal one sample; returns its numbers of saturated, inf and NaN values."""
    tokens = len(sample.token_ids)
    rows = torch.arange(tokens, dtype=torch.int32)
    out = torch.empty((tokens, *manifest.row_shape), dtype=DTYPES[manifest.dtype])
    counts = torch.zeros((len(manifest.layer_ids), 4), dtype=torch.int64)
    gather_rows(sample.slots, rows, out, counts)
    writer.write_rows(sample.sample_id, 0, out.view(torch.uint16).numpy())
    writer.seal(
        sample.sample_id,
        token_ids=sample.token_ids,
        loss_mask=sample.loss_mask,
        stats=stats_from_counts(counts.numpy()),
    )
    values: Ints = counts[:, :3].sum(0).numpy()
    return values
