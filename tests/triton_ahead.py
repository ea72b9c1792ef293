"""Compile the Triton kernel for GPUs that are not here; one JSON object for each line of input on stdout.

A program of its own: Triton decides at import whether it interprets, and the tests' process does.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from extractor.kernels.gather import GPU_TILE, WARPS, _gather_rows

LAYERS = 3
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
DIVISIBLE = [["tt.divisibility", 16]]
POINTERS = {"rows": "*i32", "owners": "*i32", "num_rows": "*i32", "out": "*i16", "counts": "*i64"}
TENSORS = ("layers", "residuals")
STRIDES = ("layer_strides", "residual_strides")


def source(dtype: str, aligned: bool, **constants: Any) -> ASTSource:
    """The kernel with the types and alignments that a launch with such tensors gives it."""
    types: dict[str, Any] = dict.fromkeys(_gather_rows.arg_names, "constexpr")
    types |= POINTERS | dict.fromkeys(("max_rows", "tokens", "samples", "hidden"), "i32")
    types |= dict.fromkeys(TENSORS, (f"*{dtype}",) * LAYERS) | dict.fromkeys(STRIDES, ("i32",) * LAYERS)
    place = _gather_rows.arg_names.index
    facts = {(place(name), i): DIVISIBLE for name in (*TENSORS, *STRIDES) for i in range(LAYERS)}
    facts |= {(place(name),): DIVISIBLE for name in (*POINTERS, "hidden")}
    return ASTSource(_gather_rows, types, {(place(n),): v for n, v in constants.items()}, facts if aligned else {})


def compiled(capability: int, dtype: str, aligned: bool, **constants: Any) -> dict[str, Any]:
    """Registers, stack bytes and the memory instructions of the machine code."""
    kernel = triton.compile(
        source(dtype, aligned, **constants, ROWS=GPU_TILE[0], COLUMNS=GPU_TILE[1]),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": WARPS, "enable_fp_fusion": False},
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = tool("cuobjdump", "--dump-resource-usage", file.name)
        code = tool("nvdisasm", file.name)
    return {
        "registers": int(re.findall(r"REG:(\d+)", usage)[0]),
        "stack": int(re.findall(r"STACK:(\d+)", usage)[0]),
        "memory": Counter(re.findall(r"\b((?:LDG|STG|LDL|STL)[A-Z0-9_.]*)", code)),
    }


def tool(name: str, *arguments: str) -> str:
    return subprocess.run([str(TOOLS / name), *arguments], check=True, capture_output=True, text=True).stdout


def main() -> None:
    """All kinds for an H100 or H200; the main ones for the generations before and after."""
    main_kinds = (("bf16", False, False), ("bf16", False, True), ("fp32", False, False))
    kinds = {80: main_kinds, 90: (*main_kinds, ("bf16", True, False), ("fp16", False, False)), 100: main_kinds}
    for capability, (dtype, bf16, pair) in ((sm, kind) for sm in kinds for kind in kinds[sm]):
        constants = {"BF16": bf16, "PAIR": pair, "IN_FP32": False, "OWNED": True, "COUNTED": True}
        found = compiled(capability, dtype, aligned=True, **constants)
        sys.stdout.write(json.dumps({"sm": capability, "dtype": dtype, "bf16": bf16, "pair": pair, **found}) + "\n")
    loose = {"BF16": False, "PAIR": False, "IN_FP32": False, "OWNED": True, "COUNTED": True}
    sys.stdout.write(
        json.dumps({"sm": 90, "dtype": "unaligned", **compiled(90, "bf16", aligned=False, **loose)}) + "\n"
    )


main()
