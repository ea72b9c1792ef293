"""The CUDA library for this machine: found, or built by nvcc, and able to drive the GPU that is here."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

import extractor
from extractor.native import NativeLibrary, NativeMissingError, load

LIBRARY = Path(extractor.__file__).with_name("libextractor_cuda.so")
SOURCES = Path(extractor.__file__).resolve().parents[1] / "csrc"
DEFAULT_TOOLKIT = Path("/usr/local/cuda")
BUILD_SECONDS = 60.0  # one architecture takes about 10
FLAGS = ("-O3", "-std=c++17", "-cudart", "static", "-shared", "-Xcompiler", "-fPIC")


class UnusableError(Exception):
    """Why nothing can be checked on this machine: what is missing, and what to do."""


def library() -> NativeLibrary:
    """The library beside the package, built first where it is missing or older than its sources.

    Raises UnusableError where it can't be had, or finds no device that it can drive.
    """
    if not LIBRARY.is_file() or is_old():
        try:
            build()
        except UnusableError as reason:
            if not LIBRARY.is_file():
                raise
            print(f"{LIBRARY} is older than {SOURCES} and is used as it is: {reason}", flush=True)
    try:
        found = load("cuda")
    except NativeMissingError as reason:
        raise UnusableError(f"{reason}; delete {LIBRARY} and run again") from reason
    if found.usable_devices() == 0:
        raise UnusableError(no_device())
    return found


def is_old() -> bool:
    newest = max((path.stat().st_mtime for path in SOURCES.glob("*")), default=0.0)
    return LIBRARY.stat().st_mtime < newest


def build() -> None:
    """Compile for the GPU that is here, or, by an nvcc that does not know it, to PTX that the driver compiles."""
    if not (SOURCES / "gather.cu").is_file():
        raise UnusableError(f"{LIBRARY.name} is missing, and {SOURCES} has no gather.cu; run from a checkout")
    compiler = nvcc()
    said = ""
    with tempfile.TemporaryDirectory(dir=LIBRARY.parent) as folder:
        built = Path(folder) / LIBRARY.name
        for target in targets():
            command = [*compiler, *FLAGS, *target, str(SOURCES / "gather.cu"), "-o", str(built)]
            print(f"building: {shlex.join(command)}", flush=True)
            said = failure(command)
            if not said:
                built.replace(LIBRARY)  # a new file: the old one may be mapped
                return
    raise UnusableError(f"{compiler[0]} can't build the CUDA library: {said}; CUDA 12.8 or newer is known to")


def failure(command: list[str]) -> str:
    """The end of what a failed command said; nothing when it succeeded."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=BUILD_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout + done.stderr).strip()[-2000:] or f"exit code {done.returncode}" if done.returncode else ""


def targets() -> list[list[str]]:
    major, minor = torch.cuda.get_device_capability()
    return [[f"-arch=sm_{major}{minor}"], ["-gencode", "arch=compute_80,code=compute_80"]]


def nvcc() -> list[str]:
    """The command of the first nvcc that exists. Raises UnusableError with all places where it was looked for."""
    looked = list(places(os.environ))
    for command in looked:
        if shutil.which(command[0]):
            return command
    raise UnusableError(
        f"{LIBRARY.name} is not built, and there is no nvcc at {', '.join(shlex.join(command) for command in looked)} "
        "(nvcc alone: on PATH); install CUDA 12.8 or newer, or set CUDACXX to the nvcc to use"
    )


def places(environment: Mapping[str, str]) -> Iterator[list[str]]:
    """Where nvcc may be: what the user names, then PATH, then where the toolkit lies by default."""
    if environment.get("CUDACXX", "").strip():
        yield shlex.split(environment["CUDACXX"])
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(variable):
            yield [str(Path(environment[variable]) / "bin" / "nvcc")]
    yield ["nvcc"]
    yield [str(DEFAULT_TOOLKIT / "bin" / "nvcc")]


def no_device() -> str:
    major, minor = torch.cuda.get_device_capability()
    return (
        f"{LIBRARY} finds no device that it can drive: here is {torch.cuda.get_device_name()} of compute capability "
        f"{major}.{minor}, with a driver for CUDA {driver_version()}. It needs capability 8.0, and a driver not older "
        "than the CUDA release (12, 13, ...) that it was built with: update the driver, or delete the library and run "
        "again with CUDACXX=<an older nvcc>"
    )


def driver_version(name: str = "libcuda.so.1") -> str:
    """The newest CUDA that the driver speaks, such as 12.8."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL(name).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return "unknown"
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
