"""One run that says whether kernels and ring are right and fast on this machine's GPU, in at most 5 minutes.

    python bench/gpu_check.py --out gpu.json

Needs a CUDA GPU, torch, NumPy and ml_dtypes, Triton for what it compares with Triton, and nvcc where the CUDA library
is not built yet; no vLLM. It checks CUDA == Triton == C++ == definition bit for bit on fresh random inputs, the ring
(`Capture`) on a late device and on replayed graphs, then measures ceilings, gather, zero-copy stores and the ring,
alone and beside a running matrix product, and what a step costs the engine. Targets: one H200, PCIe Gen5.
Exit codes: 0 all right, 1 something is wrong, could not run or hung, 2 no usable GPU or build. A missed speed target is
printed, no error; so is what was left out because the time had run out. The JSON file is written after each part.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib.util
import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

for package in ("torch", "numpy", "ml_dtypes"):
    if importlib.util.find_spec(package) is None:
        print(f"{package} is not installed; this check needs it: pip install {package}", file=sys.stderr)
        sys.exit(2)

import torch  # noqa: E402

CHECKOUT = Path(__file__).resolve().parents[1]
if (CHECKOUT / "extractor" / "__init__.py").is_file():  # else the package is installed
    sys.path.insert(0, str(CHECKOUT))

from extractor.bench import gpu_build  # noqa: E402
from extractor.bench.gpu_parts import PARTS, Part, Run  # noqa: E402
from extractor.bench.gpu_report import Report, machine, table  # noqa: E402

# After --seconds nothing new begins. What is under way then takes a few seconds; a device that hangs takes for ever.
GRACE_SECONDS = 40.0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="JSON file for the results")
    parser.add_argument("--seed", type=int, default=None, help="of the random inputs; default: a fresh one, printed")
    parser.add_argument("--seconds", type=float, default=240.0, help="begin nothing after this time, build included")
    parser.add_argument("--only", choices=("equality", "speed"), default=None, help="leave the other half out")
    return parser.parse_args(arguments)


def run_parts(parts: Iterable[Part], run: Run, started: float, seconds: float) -> None:
    """Each part until its own time is over, its results printed and written as soon as they are there."""
    report = run.report
    for part in parts:
        end = started + seconds * part.until
        seen = len(report.checks), len(report.measured), len(report.failures)
        report.run(part.name, lambda part=part, end=end: part.run(run, lambda: time.monotonic() >= end))
        new = (rows[n:] for rows, n in zip((report.checks, report.measured, report.failures), seen, strict=True))
        print(table(*new), flush=True)


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """End the process with code 1, saying where it is, if it is still inside then."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    started = time.monotonic()
    if not torch.cuda.is_available():
        print("torch finds no CUDA GPU here; this check needs one, and a CUDA build of torch", file=sys.stderr)
        return 2
    with ended_after(options.seconds + GRACE_SECONDS):
        try:
            cuda = gpu_build.library()
        except gpu_build.UnusableError as reason:
            print(reason, file=sys.stderr)
            return 2
        seed = secrets.randbits(32) if options.seed is None else options.seed
        print(f"{machine()} seed {seed}", flush=True)
        report = Report(options.out, {"machine": machine(), "seed": seed, "library": str(gpu_build.LIBRARY)})
        parts = [part for part in PARTS if options.only in (None, part.half)]
        run_parts(parts, Run(cuda, seed, report), started, options.seconds)
    print(f"{'something is wrong' if report.is_wrong else 'all right'}; written to {options.out}")
    return int(report.is_wrong)


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)  # the GPU's kernels are to be compared, not Triton's interpreter
    sys.exit(main())
