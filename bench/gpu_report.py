"""What a run on a GPU found: checks, measurements and failures, as a table and as a JSON file that is never half."""

from __future__ import annotations

import json
import platform
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from extractor.bench.gpu_targets import verdict

Over = Callable[[], bool]  # whether the time for this part has run out
NO_TIME = "no time left"


@dataclass(slots=True)
class Check:
    """One thing that is right or wrong."""

    what: str
    cases: int = 0
    differ: list[str] = field(default_factory=list)
    failed: str = ""  # why it could not run
    left_out: str = ""  # what was not looked at, and why

    @property
    def is_wrong(self) -> bool:
        return bool(self.differ or self.failed)

    def result(self) -> str:
        parts = []
        if self.differ:
            parts.append(f"WRONG in {len(self.differ)}: {'; '.join(self.differ[:3])}")
        if self.failed:
            parts.append(f"FAILED: {self.failed}")
        if self.cases and not parts:
            parts.append("right")
        if self.left_out:
            parts.append(f"left out: {self.left_out}")
        return "; ".join(parts)


@dataclass(slots=True)
class Measure:
    """One thing that was timed, alone and beside a running matrix product."""

    what: str
    unit: str
    alone: float | None = None
    loaded: float | None = None
    us_each: float | None = None
    share: float | None = None  # of the ceiling
    failed: str = ""
    left_out: str = ""

    def result(self) -> str:
        if self.failed:
            return f"FAILED: {self.failed}"
        if self.left_out:
            return f"left out: {self.left_out}"
        return verdict(self.what, self.alone, self.share)


class Report:
    """All results so far. `write` replaces the file as a whole, so that a killed run leaves the last state."""

    def __init__(self, out: Path, about: dict[str, Any]) -> None:
        self.checks: list[Check] = []
        self.measured: list[Measure] = []
        self.failures: list[dict[str, str]] = []  # parts that broke off
        self._out = out
        self._about = about
        self._seconds: dict[str, float] = {}
        self._unfinished: str | None = None

    @property
    def is_wrong(self) -> bool:
        return bool(self.failures or any(c.is_wrong for c in self.checks) or any(m.failed for m in self.measured))

    def run(self, name: str, part: Callable[[], object]) -> None:
        """Run a part and write the file before and after it. One that breaks off is a failure; what it found stays."""
        self._unfinished = name
        self.write()
        started = time.monotonic()
        try:
            part()
        except Exception as error:
            self.failures.append({"what": name, "failed": said(error), "traceback": traceback.format_exc()})
        self._seconds[name] = round(time.monotonic() - started, 3)
        self._unfinished = None
        self.write()

    def write(self) -> None:
        results = {
            **self._about,
            "unfinished": self._unfinished,
            "seconds": self._seconds,
            "checks": [asdict(check) for check in self.checks],
            "measured": [asdict(measure) for measure in self.measured],
            "failures": self.failures,
        }
        partial = self._out.with_name(f"{self._out.name}.partial")
        partial.write_text(json.dumps(results, indent=1) + "\n")
        partial.replace(self._out)


def tried(what: str, run: Callable[[], Iterable[str]], over: Over, cases: int = 1) -> Check:
    """What `run` says is wrong, or its error, or the reason why it did not run."""
    if over():
        return Check(what, left_out=NO_TIME)
    check = Check(what, cases)
    try:
        check.differ = list(run())
    except Exception as error:
        check.failed = said(error)
    return check


def said(error: Exception) -> str:
    """One line; a compiler's message holds many, the first of which says it."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}" if text else type(error).__name__


def table(checks: Sequence[Check], measured: Sequence[Measure], failures: Sequence[dict[str, str]] = ()) -> str:
    lines = [f"{'check':<64}{'cases':>7}  result"] if checks else []
    lines += [f"{check.what:<64}{check.cases:>7}  {check.result()}" for check in checks]
    if measured:
        head = f"{'measured':<56}{'alone':>9}{'loaded':>9} {'unit':<5}{'us each':>9}{'of peak':>8}  target"
        lines += [head, *map(row, measured)]
    lines += [f"BROKE OFF: {failure['what']}: {failure['failed']}" for failure in failures]
    return "\n".join(lines)


def row(measure: Measure) -> str:
    share = "" if measure.share is None else f"{measure.share:.0%}"
    return (
        f"{measure.what:<56}{number(measure.alone):>9}{number(measure.loaded):>9} {measure.unit:<5}"
        f"{number(measure.us_each):>9}{share:>8}  {measure.result()}"
    ).rstrip()


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def machine() -> dict[str, str]:
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    }
