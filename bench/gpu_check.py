"""One run that says whether the CUDA kernels are right and fast on this machine: at most 5 minutes, one GPU.

    python bench/gpu_check.py --out gpu.json

Needs a CUDA GPU, torch and Triton, and nvcc where the CUDA library is not built yet; no vLLM. It checks CUDA == Triton
== C++ == definition bit for bit on fresh random inputs and the order of graph replays, then measures ceilings, gather,
the way to the host and zero-copy stores, alone and under a running matrix product. Targets: one H200, PCIe Gen5.
Exit codes: 0 all right, 1 wrong bits or order, 2 no usable GPU or build. A missed speed target is printed, no error.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import gpu_equality  # noqa: E402
import gpu_order  # noqa: E402
import gpu_speed as speed  # noqa: E402

from extractor.gather_native import NativeGather  # noqa: E402
from extractor.native import NativeLibrary, NativeMissingError  # noqa: E402

Row = dict[str, Any]
HIDDEN, ROWS = (4096, 7168), (32, 1024, 8192)
BLOCKS = (4, 8, 16, 132)
# (start of the name, unit, target, fail below or above) on one H200.
TARGETS = (
    ("copy to pinned memory, 1024 MiB", "GB/s", 53.0, 45.0),
    ("gather, 8192 rows x 3 x 7168", "GB/s", 3400.0, 2600.0),
    ("gather + copy to the host, 1024 rows x 3 x 7168", "GB/s", 48.0, 43.0),
    ("time added to a prefill step", "%", 1.0, 5.0),
    ("time added to a decode step", "%", 2.0, 5.0),
    ("host time of a bound call", "us", 5.0, 10.0),
)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="JSON file for the results")
    parser.add_argument("--seed", type=int, default=None, help="of the random inputs; default: a fresh one, printed")
    parser.add_argument("--seconds", type=float, default=240.0, help="start no measurement after this time")
    parser.add_argument("--only", choices=("equality", "speed"), default=None, help="leave the other half out")
    return parser.parse_args(arguments)


def library(name: str) -> NativeLibrary:
    """The library beside the package, built first where it is missing: with CMake, or with the compiler alone."""
    path = ROOT / "extractor" / f"libextractor_{name}.so"
    try:
        return NativeLibrary(path)
    except NativeMissingError as reason:
        print(f"building: {reason}", flush=True)
    for command in build_commands(name, path):
        if subprocess.run(command, cwd=ROOT, check=False).returncode == 0:
            break
    return NativeLibrary(path)


def build_commands(name: str, path: Path) -> list[list[str]]:
    if name == "cpu":
        return [["c++", "-O3", "-std=c++17", "-shared", "-fPIC", "csrc/gather.cpp", "-o", str(path)]]
    common = [
        "-O3",
        "-std=c++17",
        "-cudart",
        "static",
        "-shared",
        "-Xcompiler",
        "-fPIC",
        "csrc/gather.cu",
        "-o",
        str(path),
    ]
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    return [["nvcc", f"-arch=sm_{major}{minor}", *common], ["nvcc", *common]]


def by_library(found: NativeLibrary) -> Callable[..., None]:
    def gather(layers: Any, rows: Any, out: Any, counts: Any, **rest: Any) -> None:
        NativeGather(found, layers, rows, out, counts, **rest)(layers, None, rest["residuals"])

    return gather


def equality(cuda: NativeLibrary, seed: int) -> list[Row]:
    from extractor.kernels.gather_ref import gather_rows_ref

    implementations = {"CUDA": by_library(cuda), "torch": gather_rows_ref}
    if importlib.util.find_spec("triton"):
        from extractor.kernels.gather import gather_rows_triton

        implementations["Triton"] = gather_rows_triton
    found = gpu_equality.check(implementations, torch.device("cuda"), seed)
    rows = [{"what": f"{name} = definition", "differ": f["differ"], "cases": f["cases"]} for name, f in found.items()]
    for inside in (True, False):
        wrong = [f"step {step}" for step in gpu_order.check_order(cuda, inside)]
        what = f"order of graph replays, gather {'inside' if inside else 'after'} the graph"
        rows.append({"what": what, "differ": wrong, "cases": gpu_order.STEPS})
    return rows


def works(cuda: NativeLibrary) -> Iterator[speed.Work]:
    """Everything that is timed, prepared one by one, what matters most first."""
    yield speed.device_copy()
    yield from (speed.host_copy(nbytes) for nbytes in (64 << 10, 1 << 20, 16 << 20, 64 << 20, 1 << 30))
    yield from (speed.gather(cuda, rows, h, pair) for h in HIDDEN for rows in ROWS for pair in (False, True))
    yield from (speed.pipeline(cuda, rows, h) for h in HIDDEN for rows in (32, 1024))
    yield from (speed.zero_copy(cuda, rows, 7168, blocks) for rows in (32, 1024) for blocks in BLOCKS)
    if importlib.util.find_spec("triton"):
        yield from (speed.gather_triton(rows, h) for h in HIDDEN for rows in ROWS)


def timed(prepared: Sequence[speed.Work], column: str, rows: list[Row], deadline: float) -> None:
    for work, row in zip(prepared, rows, strict=True):
        if time.monotonic() > deadline:
            row[column] = None
            continue
        taken = speed.seconds(work.run)
        row[column] = work.nbytes / taken / 1e9
        row[f"{column}_us_each"] = taken / work.parts * 1e6


def speeds(cuda: NativeLibrary, deadline: float) -> list[Row]:
    prepared = list(works(cuda))
    rows: list[Row] = [{"what": work.name, "unit": "GB/s"} for work in prepared]
    timed(prepared, "idle", rows, deadline)
    with speed.running_product():
        timed(prepared, "loaded", rows, deadline)
    ceiling = rows[0]["idle"]
    for row in rows:
        if row["what"].startswith("gather") and "host" not in row["what"] and row["idle"] is not None:
            row["share_of_device_copy"] = row["idle"] / ceiling
    for kind, tokens, matrices, share in (("prefill", 8192, 12, 1024), ("decode", 256, 60, 32)):
        added = speed.added_step_time(cuda, tokens, matrices, share, 7168)
        rows.append({"what": f"time added to a {kind} step", "unit": "%", "idle": added * 100})
    rows.append({"what": "host time of a bound call", "unit": "us", "idle": host_time(cuda)})
    return rows


def host_time(cuda: NativeLibrary, calls: int = 2000) -> float:
    """Microseconds of the engine's thread for one launch; few rows, so that the device keeps up."""
    call = speed.Buffers.make(8, 512).bind(cuda)
    call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    taken = time.perf_counter() - started
    torch.cuda.synchronize()
    return taken / calls * 1e6


def verdict(row: Row) -> str:
    """Against the H200 targets: `met`, `short`, `FAIL`, or nothing where there is none."""
    for name, unit, target, limit in TARGETS:
        if row["what"] == name and row.get("idle") is not None:
            less_is_better = unit != "GB/s"
            value, target, limit = ((-1 if less_is_better else 1) * v for v in (row["idle"], target, limit))
            return "met" if value >= target else "short" if value >= limit else "FAIL"
    return ""


def table(checks: Sequence[Row], rows: Sequence[Row]) -> str:
    lines = [f"{'check':<64}{'cases':>7}  result"] if checks else []
    for check in checks:
        result = f"WRONG in {len(check['differ'])}: {', '.join(check['differ'][:3])}" if check["differ"] else "equal"
        lines.append(f"{check['what']:<64}{check['cases']:>7}  {result}")
    if rows:
        lines.append(f"\n{'measured':<56}{'alone':>9}{'loaded':>9} {'unit':<5}{'us each':>9}{'of copy':>8}  target")
    for row in rows:
        each, share = row.get("idle_us_each"), row.get("share_of_device_copy")
        lines.append(
            f"{row['what']:<56}{number(row.get('idle')):>9}{number(row.get('loaded')):>9} {row['unit']:<5}"
            f"{number(each):>9}{'' if share is None else f'{share:.0%}':>8}  {verdict(row)}".rstrip()
        )
    return "\n".join(lines)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def machine() -> dict[str, str]:
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    deadline = time.monotonic() + options.seconds
    os.environ.pop("TRITON_INTERPRET", None)
    if not torch.cuda.is_available():
        print("torch finds no CUDA GPU here; this check needs one (and a CUDA build of torch)", file=sys.stderr)
        return 2
    try:
        cuda = library("cuda")
    except (NativeMissingError, FileNotFoundError) as error:
        print(f"the CUDA library can't be had: {error}; install nvcc 12.8 or newer", file=sys.stderr)
        return 2
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"{machine()} seed {seed}", flush=True)
    checks = equality(cuda, seed) if options.only != "speed" else []
    print(table(checks, []), flush=True)
    rows = speeds(cuda, deadline) if options.only != "equality" else []
    print(table([], rows), flush=True)
    results = {"machine": machine(), "seed": seed, "checks": checks, "measured": rows}
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(check["differ"] for check in checks))


if __name__ == "__main__":
    sys.exit(main())
