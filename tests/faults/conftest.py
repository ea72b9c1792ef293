"""Fixtures of the fault tests: a preloaded library that fails or records writes, and file systems of their own."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def preload(tmp_path_factory):
    """run(module, *arguments, source) -> what its main prints as JSON, with `source` loaded before libc."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to build the fault library with")
    folder = tmp_path_factory.mktemp("faults")

    def run(module, *arguments, source="faults.c"):
        library = folder / f"{source}.so"
        if not library.exists():
            subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / source, "-ldl"], check=True)
        paths = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent), str(HERE)])
        environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": paths}
        command = [sys.executable, str(HERE / module), *map(str, arguments)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return run


@pytest.fixture
def mount(tmp_path):
    """mount(options) -> a folder on a tmpfs of its own; skipped where mounting is not allowed."""
    mounted = []

    def make(options):
        point = tmp_path / f"mount{len(mounted)}"
        point.mkdir()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"tmpfs", str(point).encode(), b"tmpfs", 0, options.encode()) != 0:
            pytest.skip(f"mounting is not allowed here: {os.strerror(ctypes.get_errno())}")
        mounted.append(point)
        return point

    yield make
    for point in mounted:
        subprocess.run(["umount", point], check=True)
