"""What happened to every record: counts per source, percentiles, and the list of records that gave no sample."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from extractor.prepare.sources import Source
from extractor.prepare.work import Outcome, Verdict
from extractor.samples import SEGMENT_KINDS

_PERCENTILES = (50, 90, 95, 99, 100)
KEPT, DUPLICATE, NOT_DRAWN = 1, 2, 4


@dataclass(slots=True)
class Tally:
    """Counts of one source. `fate` holds one byte a record: flags of what became of its samples."""

    read: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    repairs: Counter[str] = field(default_factory=Counter)
    samples: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    lengths: array[int] = field(default_factory=lambda: array("i"))
    fates: dict[int, bytearray] = field(default_factory=dict)

    def mark(self, file: int, record: int, flag: int) -> None:
        fate = self.fates.setdefault(file, bytearray())
        if record >= len(fate):
            fate.extend(bytes(record + 1 - len(fate)))
        fate[record] |= flag

    def records(self) -> dict[str, Any]:
        """read = kept + duplicate + dropped + rejected. A record is kept if one of its samples is."""
        fates = Counter(flag for fate in self.fates.values() for flag in fate)
        kept = sum(count for flag, count in fates.items() if flag & KEPT)
        duplicate = sum(count for flag, count in fates.items() if flag & DUPLICATE and not flag & KEPT)
        dropped = dict(sorted(self.dropped.items()))
        if fates[NOT_DRAWN]:
            dropped["not_drawn"] = fates[NOT_DRAWN]
        rejected = dict(sorted(self.rejected.items()))
        return {"read": self.read, "kept": kept, "duplicate": duplicate, "dropped": dropped, "rejected": rejected}


class Report:
    """Collects verdicts and counts while the run goes; `summary` is the content of report.json."""

    def __init__(self, sources: list[Source], rejects: TextIO) -> None:
        self._sources = sources
        self._rejects = rejects
        self.tallies = [Tally() for _ in sources]

    def add(self, source: int, file: int, read: int, outcome: Outcome) -> None:
        tally = self.tallies[source]
        tally.read += read
        tally.repairs.update(outcome.repairs)
        for verdict in outcome.verdicts:
            (tally.rejected if verdict.outcome == "rejected" else tally.dropped)[verdict.reason] += 1
            self._write(source, file, verdict)

    def _write(self, source: int, file: int, verdict: Verdict) -> None:
        line = {
            "source": self._sources[source].name,
            "file": self._sources[source].files[file].name,
            "record": verdict.number,
            "offset": verdict.offset,
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "detail": verdict.detail,
        }
        self._rejects.write(json.dumps(line, ensure_ascii=True) + "\n")

    def summary(self, settings: dict[str, Any]) -> dict[str, Any]:
        sources = {source.name: _source(tally) for source, tally in zip(self._sources, self.tallies, strict=True)}
        return {"settings": settings, "total": _source(_sum(self.tallies)), "sources": sources}


def _source(tally: Tally) -> dict[str, Any]:
    return {
        "records": tally.records(),
        "samples": {name: tally.samples[name] for name in ("kept", "duplicate", "not_drawn", "truncated")},
        "tokens": {name: tally.tokens[name] for name in ("total", "trained", *SEGMENT_KINDS)},
        "length_percentiles": _percentiles(tally.lengths),
        "repairs": dict(sorted(tally.repairs.items())),
    }


def _percentiles(lengths: array[int]) -> dict[str, int]:
    """Lengths in tokens, of kept samples; each is the length of a sample, not a value between two."""
    if not lengths:
        return {}
    values = np.percentile(np.frombuffer(lengths, np.int32), _PERCENTILES, method="inverted_cdf")
    return {f"p{p}" if p < 100 else "max": int(value) for p, value in zip(_PERCENTILES, values, strict=True)}


def _sum(tallies: list[Tally]) -> Tally:
    total = Tally()
    for i, tally in enumerate(tallies):
        total.read += tally.read
        for name in ("rejected", "dropped", "repairs", "samples", "tokens"):
            getattr(total, name).update(getattr(tally, name))
        total.lengths += tally.lengths
        total.fates.update({(i << 32) + file: fate for file, fate in tally.fates.items()})
    return total


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
