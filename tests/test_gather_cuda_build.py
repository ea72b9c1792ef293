"""The CUDA library as nvcc builds it: targets, registers, memory instructions and what it needs to load."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "csrc").iterdir())
BUILT = ROOT / "extractor" / "libextractor_cuda.so"


def is_current(library: Path) -> bool:
    return library.exists() and library.stat().st_mtime >= max(path.stat().st_mtime for path in SOURCES)


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """The library beside the package when it is newer than its sources, and otherwise a new build of it."""
    if is_current(BUILT):
        return BUILT
    if shutil.which("nvcc") is None or shutil.which("cmake") is None:
        pytest.skip("nvcc or cmake is not installed here")
    folder = tmp_path_factory.mktemp("cuda")
    for step in (["-S", ROOT, "-B", folder, "-DEXTRACTOR_CUDA=ON"], ["--build", folder, "--parallel", "2"]):
        done = subprocess.run(["cmake", *map(str, step)], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "libextractor_cuda.so"


def cuobjdump(library: Path, *options: str) -> str:
    triton = pytest.importorskip("triton", reason="cuobjdump comes with Triton, which has no build for this machine")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, *options, library], check=True, capture_output=True, text=True).stdout


def test_it_holds_code_for_three_generations_and_ptx_for_later_ones(library):
    listing = cuobjdump(library, "-lelf") + cuobjdump(library, "-lptx")
    assert sorted(re.findall(r"sm_\d+\w*\.(?:cubin|ptx)", listing)) == [
        "sm_100.cubin", "sm_80.cubin", "sm_90.cubin", "sm_90.ptx",
    ]  # fmt: skip


def test_no_kernel_spills_or_takes_more_than_64_registers(library):
    usage = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+)", cuobjdump(library, "--dump-resource-usage"))
    # 3 sources x 2 stored x (3 pair modes by vectors + 1 by elements), on 3 targets.
    assert len(usage) == 3 * 2 * (3 + 1) * 3
    for name, registers, stack in usage:
        assert int(registers) <= 64, name
        assert int(stack) == 0, name


def test_vector_kernels_move_16_bytes_at_a_time(library):
    functions = re.split(r"\s+Function : ", cuobjdump(library, "-sass", "-arch", "sm_90"))[1:]
    kernels = [text for text in functions if "VectorRow" in text.splitlines()[0]]
    assert len(kernels) == 3 * 2 * 3
    for text in kernels:
        memory = Counter(re.findall(r"\b((?:LDG|STG)[A-Z0-9_.]*\.128)", text))
        loads = sum(count for name, count in memory.items() if name.startswith("LDG"))
        assert loads >= 4, text.splitlines()[0]  # 64 bytes of each thread under way
        assert sum(memory.values()) > loads, text.splitlines()[0]


def test_it_needs_no_cuda_to_load_and_exports_the_c_abi_only(library):
    if shutil.which("readelf") is None or shutil.which("nm") is None:
        pytest.skip("readelf and nm are not installed here")
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    assert not re.findall(r"NEEDED.*(?:cuda|torch|python).*", dynamic)
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    assert {line.split()[-1] for line in symbols.splitlines()} == {
        "extractor_abi_version", "extractor_args_bytes", "extractor_error_string", "extractor_gather_rows",
        "extractor_path", "extractor_usable_devices",
    }  # fmt: skip
