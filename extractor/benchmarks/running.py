"""Runs one file of `bench/` in a process of its own and reads what pytest-benchmark wrote."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import extractor
from extractor.benchmarks import catalog
from extractor.benchmarks.machine import commit, machine, versions
from extractor.benchmarks.pytest_files import read_benchmarks, read_outcomes
from extractor.benchmarks.results import Question, Results
from extractor.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where benchmarks write: `disk` stands for the folder of a store, `memory` for a disk that is never the limit."""

    disk: Path
    memory: Path
    toy: bool = False

    def environment(self) -> dict[str, str]:
        package_root = str(Path(extractor.__file__).resolve().parents[1])
        return {
            **os.environ,
            "EXTRACTOR_BENCH_DIR": str(self.disk.resolve()),
            "EXTRACTOR_BENCH_MEMORY": str(self.memory.resolve()),
            "EXTRACTOR_BENCH_TOY": "1" if self.toy else "",
            # A checkout that is not installed measures itself.
            "PYTHONPATH": os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")])),
        }


def run_benchmarks(names: Sequence[str], places: Places, tell: Callable[[str], None]) -> Results:
    """`tell` is called with a line before and after each benchmark. Raises UsageError for unknown names, missing
    folders or a missing pytest-benchmark; a benchmark that fails is in the results."""
    wanted = catalog.chosen(names)
    _require_tools()
    for folder in (places.disk, places.memory):
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder; pass an existing one with --dir or --memory-dir")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    answered = []
    for name, question in wanted.items():
        tell(f"{name}: {question}")
        answered.append(_run(name, question, places))
        tell(_outcome(answered[-1]))
    return Results(
        started=started,
        commit=commit(),
        toy=places.toy,
        machine=machine(places.disk, places.memory),
        versions=versions(),
        questions=tuple(answered),
    )


def _run(name: str, question: str, places: Places) -> Question:
    file = catalog.folder() / f"{name}.py"
    load_before = os.getloadavg()[0]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="extractor-bench-") as scratch:
        folder = Path(scratch)
        exit_code, peak_mib = _pytest(file, folder, places)
        tables = read_benchmarks(folder / "benchmarks.json")
        not_measured, failed = read_outcomes(folder / "outcomes.xml")
        if exit_code not in (0, 5) and not failed:
            failed = ((name, f"{_ending(exit_code)}: {_tail(folder / 'log')}"),)
    return Question(
        name=name,
        question=question,
        tables=tables,
        not_measured=not_measured,
        failed=failed,
        seconds=round(time.monotonic() - started, 1),
        peak_mib=round(peak_mib),
        load=(round(load_before, 2), round(os.getloadavg()[0], 2)),
    )


def _pytest(file: Path, folder: Path, places: Places) -> tuple[int, float]:
    """Exit code and peak resident MiB of the process and of those it waited for."""
    pytest_files = places.disk / f"{folder.name}.tmp"
    command = [sys.executable, "-m", "pytest", str(file), "-q", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull, "--rootdir", str(file.parent), "--basetemp", str(pytest_files)]
    command += ["--benchmark-json", str(folder / "benchmarks.json"), "--junitxml", str(folder / "outcomes.xml")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=places.environment(), stdout=log, stderr=subprocess.STDOUT)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        finally:
            shutil.rmtree(pytest_files, ignore_errors=True)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_maxrss / 1024


def _ending(exit_code: int) -> str:
    return f"killed by signal {-exit_code}" if exit_code < 0 else f"pytest's exit code {exit_code}"


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:]) or "pytest printed nothing"


def _outcome(question: Question) -> str:
    parts = [f"  {question.seconds:.0f} s, {len(question.tables)} tables, peak {question.peak_mib:,.0f} MiB"]
    parts += [f"  not measured: {what}: {why}" for what, why in question.not_measured]
    parts += [f"  FAILED: {what}: {why}" for what, why in question.failed]
    return "\n".join(parts)


def _require_tools() -> None:
    missing = [name for name in ("pytest", "pytest_benchmark") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"`extractor bench` needs {', '.join(missing)}; run `pip install 'hidden-state-extractor[bench]'`"
        )
