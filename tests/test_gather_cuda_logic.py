"""csrc/gather.cu run on the CPU by a stand-in for CUDA: what the kernel computes, where there is no GPU to run it.

The stand-in (tests/cuda_on_cpu) compiles the same source with blocks of 64 threads, so of two warps. On a GPU the same
comparison is made by bench/gpu_check.py.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from gather_cases import PAIRS, SOURCES, STORED, Case, Gather, make_case
from torch import Tensor

from extractor.gather_native import NativeGather
from extractor.native import NativeLibrary

ROOT = Path(__file__).resolve().parents[1]
COMPILER = shutil.which("g++") or shutil.which("c++")
FLAGS = ["-x", "c++", "-O1", "-std=c++17", "-fno-strict-aliasing", "-DEXTRACTOR_THREADS=64", "-shared", "-fPIC"]


def build(source: Path, library: Path) -> NativeLibrary:
    include = [f"-I{ROOT / 'tests' / 'cuda_on_cpu'}", f"-I{ROOT / 'csrc'}"]
    done = subprocess.run(
        [COMPILER, *FLAGS, *include, str(source), "-o", str(library)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return NativeLibrary(library)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    if COMPILER is None:
        pytest.skip("no C++ compiler is installed here")
    return tmp_path_factory.mktemp("cuda_on_cpu")


@pytest.fixture(scope="module")
def library(folder) -> NativeLibrary:
    return build(ROOT / "csrc" / "gather.cu", folder / "right.so")


def kernel(library: NativeLibrary, max_blocks: int = 0) -> Gather:
    def gather(layers: Sequence[Tensor], rows: Tensor, out: Tensor, counts: Tensor, *rest: object) -> None:
        NativeGather(library, layers, rows, out, counts, *rest, max_blocks=max_blocks)(layers, None, rest[2])

    return gather


@pytest.mark.parametrize("hidden", [129, 136, 2056])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_equals_the_definition(library, source, stored, pair, hidden):
    """By elements (129), by vectors (136), and by vectors of which a thread holds several, with a tail (2056)."""
    make_case(source, stored, pair, hidden=hidden, wide=0, samples=3).check(kernel(library))


@pytest.mark.parametrize("samples", [0, 1, 4, 70])
@pytest.mark.parametrize("max_blocks", [0, 1, 5])
def test_blocks_of_several_rows_and_capped_grids(library, samples, max_blocks):
    """70 rows of 3 layers are 8 rows for each block here: owners change inside a block and between blocks."""
    case = make_case(torch.bfloat16, torch.float16, "alone", rows=70, hidden=40, wide=0, samples=samples)
    case.check(kernel(library, max_blocks))
    if samples:
        case.owners = case.owners.sort().values
        case.check(kernel(library, max_blocks))


@pytest.mark.parametrize("wide", [1, 8])
def test_rows_cut_from_wider_tensors(library, wide):
    """Off 16 bytes (by elements) and on them (by vectors)."""
    case = make_case(torch.bfloat16, torch.float16, "rounded", hidden=64, wide=0)
    case.layers = [torch.cat([t, t[:, :wide]], 1)[:, :64] for t in case.layers]
    case.check(kernel(library))


@pytest.mark.parametrize("num_rows", [-1, 0, 1, 12, 13, 99])
def test_the_number_of_rows_is_read_when_the_kernel_runs(library, num_rows):
    case = make_case(torch.float32, torch.float16, "alone", hidden=40, wide=0, samples=2)
    case.num_rows = torch.tensor([num_rows], dtype=torch.int32)
    case.check(kernel(library))


@pytest.mark.parametrize("hidden", [129, 136])
def test_rows_and_owners_outside_become_nan(library, hidden):
    case = make_case(torch.bfloat16, torch.bfloat16, "alone", hidden=hidden, wide=0, rows=40, samples=2)
    case.rows[[0, 5, 39]] = torch.tensor([-1, 9, 2**31 - 1], dtype=torch.int32)
    case.owners[[1, 2, 39]] = torch.tensor([-1, 2, 5], dtype=torch.int32)
    case.check(kernel(library))
    assert case.out[[0, 1, 2, 5, 39]].isnan().all()


def test_millions_of_counts_do_not_overflow_the_block(library):
    """More specials than 16 bits count, in each class."""
    layer = torch.full((2, 90_000), 1e9)
    layer[:, ::3], layer[:, 1::3] = float("inf"), float("nan")
    Case([layer], torch.tensor([0, 1, 0]).int()).check(kernel(library))


WRONG = {
    "a row too far": ("args.rows[r], out, seen);", "args.rows[r] + (args.rows[r] + 1 < args.tokens), out, seen);"),
    "never merged at an owner's end": ("args.owners[r + 1] != owner", "false"),
    "a tail cut off": ("at >= args.hidden) continue", "at + 8 >= args.hidden) continue"),
    "the last warp unheard": ("if (leader) atomicMax", "if (threadIdx.x == 0) atomicMax"),
    "statistics kept after a merge": ("    seen = Statistics{};\n}", "}"),
    "rows beyond num_rows": ("min(*args.num_rows, args.max_rows)", "args.max_rows"),
    "largest taken without its class": ("largest <= Format<stored>::largest", "largest <= kAbs"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_kernel_is_rejected(folder, what):
    """Each mistake is put into a copy of the sources, and the comparison above must see it."""
    copy = Path(shutil.copytree(ROOT / "csrc", folder / what.replace(" ", "_")))
    before, after = WRONG[what]
    sources = {path: path.read_text() for path in (copy / "gather.cu", copy / "row_cuda.cuh")}
    assert sum(text.count(before) for text in sources.values()) == 1
    for path, text in sources.items():
        path.write_text(text.replace(before, after))
    wrong = kernel(build(copy / "gather.cu", copy / "wrong.so"))
    case = make_case(torch.bfloat16, torch.float16, "alone", rows=70, hidden=1032, wide=0, samples=4)
    case.layers[1] = torch.randn(9, 1032).bfloat16()
    case.layers[1][:, 40 * 8] = 5000.0  # the largest value belongs to a thread of the second warp
    case.owners = case.owners.sort().values
    case.num_rows = torch.tensor([66], dtype=torch.int32)
    with pytest.raises(AssertionError, match="differ"):
        case.check(wrong)
