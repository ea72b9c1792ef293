"""The Triton kernel, compiled ahead of time for GPUs that are not here: what the machine code must look like."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytest.importorskip("triton", reason="Triton has no build for this machine")
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="Triton's disassemblers are x86-64 programs")


@pytest.fixture(scope="module")
def kernels() -> list[dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    program = [sys.executable, str(ROOT / "tests" / "triton_ahead.py")]
    done = subprocess.run(program, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_target_and_kind_was_compiled(kernels):
    assert sorted({kernel["sm"] for kernel in kernels}) == [80, 90, 100]
    assert len(kernels) == 3 + 5 + 3 + 1


def test_aligned_kernels_move_16_bytes_at_a_time(kernels):
    for kernel in kernels:
        if kernel["dtype"] == "unaligned":
            continue
        memory = kernel["memory"]
        loads = sum(count for name, count in memory.items() if name.startswith("LDG") and ".128" in name)
        stores = sum(count for name, count in memory.items() if name.startswith("STG") and ".128" in name)
        assert loads == (2 if kernel["pair"] or kernel["dtype"] == "fp32" else 1), kernel
        assert stores == 1, kernel
        assert not [name for name in memory if name.startswith(("LDG", "STG")) and ("16" in name or "U8" in name)], (
            kernel
        )


def test_kernels_keep_to_64_registers_and_no_stack(kernels):
    for kernel in kernels:
        assert kernel["registers"] <= 64, kernel
        assert kernel["stack"] == 0, kernel
        assert not [name for name in kernel["memory"] if name.startswith(("LDL", "STL"))], kernel


def test_the_check_can_fail(kernels):
    """Without the alignment facts the same kernel loads 16 bits at a time: the assertions above do see it."""
    (loose,) = [kernel for kernel in kernels if kernel["dtype"] == "unaligned"]
    assert [name for name in loose["memory"] if name.startswith("LDG") and "U16" in name]
