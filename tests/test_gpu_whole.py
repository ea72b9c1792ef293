"""bench/gpu_check.py from end to end on the CPU: csrc/gather.cu by tests/cuda_on_cpu, the ring on fake streams."""

from __future__ import annotations

import contextlib
import json

import pytest
import torch
from cuda_standin import OnCpu, Stream, install, run_all
from gpu_standin import FakeGpu
from test_gather_cuda_logic import COMPILER, ROOT, build

from extractor import capture as capture_module
from extractor.bench import (
    gpu_build,
    gpu_capture,
    gpu_check,
    gpu_equality,
    gpu_order,
    gpu_parts,
    gpu_ring,
    gpu_speed,
    gpu_timing,
)
from extractor.bench.gpu_targets import TARGETS
from extractor.pinned import HostMemory
from extractor.transfer import HostTransfer

# Timings on the CPU mean nothing; what is left of each measurement is that it runs and is reported.
SMALL = {
    gpu_speed: {"HIDDEN": (64,), "ROWS": (1, 2), "BLOCKS": (4,), "HOST_CALLS": 3, "BEYOND_L2_BYTES": 1,
                "COPIES": (64 << 10, 64 << 20), "DEVICE_COPY_BYTES": 1 << 20},
    gpu_capture: {"STEPS": 2, "BURSTS": 2, "MATRIX": 64, "STEP_SIZES": ((8, 3, 4), (8, 4, 4)), "HIDDEN": 64},
    gpu_timing: {"MATRIX": 64},
    gpu_ring: {"LARGE_HIDDEN": 64, "LARGE_SLOT_ROWS": 6, "LARGE_ROWS": 50, "NUM_STEPS": 5},
    gpu_order: {"STEPS": 20, "TOKENS": 12, "HIDDEN": 16},
    gpu_equality: {"PAIRS": ("alone", "fp32"), "SIZES": ((264, 8, 0), (129, 0, 0)), "NUM_ALIGNED": 1},
    gpu_parts: {"ADDED_TIMES": {"time added to a decode step": (4, 2, 4)}, "HOST_TIMES": {"host time of a step": 32}},
}  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no C++ compiler is installed here")
    return build(ROOT / "csrc" / "gather.cu", tmp_path_factory.mktemp("whole") / "gather.so")


@pytest.fixture
def on_cpu(monkeypatch, library):
    install(monkeypatch)
    for module, values in SMALL.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(gpu_build, "library", lambda: library)
    monkeypatch.setattr(gpu_parts, "gathering", lambda name: contextlib.nullcontext())
    for module in (gpu_order, gpu_speed):
        monkeypatch.setattr(module, "recorded", run_all)
    monkeypatch.setattr(
        gpu_parts, "ring", lambda run, over: gpu_parts.scenarios(FakeGpu(monkeypatch), run.report, over)
    )
    # Triton's interpreter takes seconds for each case; that it can be compared is shown elsewhere.
    monkeypatch.setattr(gpu_parts.Run, "__init__", without_triton(gpu_parts.Run.__init__))
    parts = [
        p if p.name != "ring" else gpu_parts.Part("ring", p.half, p.until, gpu_parts.ring) for p in gpu_parts.PARTS
    ]
    monkeypatch.setattr(gpu_check, "PARTS", parts)
    speed = gpu_parts.ring_speed

    def ring_speed(run, over):
        monkeypatch.setattr(capture_module, "open_transfer", on_host)
        speed(run, over)

    at = next(n for n, part in enumerate(parts) if part.name == "ring speed")
    parts[at] = gpu_parts.Part("ring speed", "speed", 1.0, ring_speed)
    with OnCpu():
        yield


def without_triton(init):
    return lambda self, cuda, seed, report: init(self, cuda, seed, report, has_triton=False)


def on_host(layout, num_slots, device):
    return HostTransfer(layout, HostMemory(layout.nbytes, num_slots))


def test_a_whole_run(on_cpu, tmp_path, capsys):
    out = tmp_path / "gpu.json"
    code = gpu_check.main(["--out", str(out), "--seconds", "250"])
    said = capsys.readouterr().out
    written = json.loads(out.read_text())
    assert (code, written["failures"], written["unfinished"]) == (0, [], None), said
    assert list(written["seconds"]) == [part.name for part in gpu_parts.PARTS]
    by_name = {check["what"]: check for check in written["checks"]}
    assert by_name["CUDA = definition"]["cases"] == 3 * 2 * 2 * 2 + 2 * 2
    assert by_name["order of graph replays, gather inside the graph"]["cases"] == 20
    assert {f"ring: {name}" for name in gpu_ring.SCENARIOS} <= set(by_name)
    for measure in written["measured"]:
        assert measure["alone"] is not None, measure
        assert measure["failed"] == measure["left_out"] == "", measure
    assert all(measure["loaded"] for measure in written["measured"] if measure["unit"] == "GB/s")
    assert [m["share"] is not None for m in written["measured"] if m["what"].startswith("ring")] == [True, True]
    assert "all right; written to" in said


def test_a_wrong_kernel_and_a_wrong_order_end_with_1(on_cpu, tmp_path, monkeypatch, capsys):
    """The kernel reads one row too far; the graph's replay is forgotten."""
    gather = gpu_equality.NativeGather

    class OffByOne(gather):
        def __init__(self, library, layers, rows, *rest, **named):
            super().__init__(library, layers, rows + 1, *rest, **named)

    monkeypatch.setattr(gpu_equality, "NativeGather", OffByOne)
    monkeypatch.setattr(gpu_order, "recorded", lambda calls: lambda: None)
    code = gpu_check.main(["--out", str(tmp_path / "gpu.json"), "--only", "equality", "--seconds", "250"])
    checks = {c["what"]: c for c in json.loads((tmp_path / "gpu.json").read_text())["checks"]}
    assert code == 1
    assert len(checks["CUDA = definition"]["differ"]) == checks["CUDA = definition"]["cases"]
    assert len(checks["order of graph replays, gather after the graph"]["differ"]) == 20
    assert checks["torch = definition"]["differ"] == []
    assert "something is wrong" in capsys.readouterr().out


def test_a_recording_waits_for_the_stream_that_made_its_tensors_and_is_waited_for(monkeypatch):
    install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: contextlib.nullcontext())
    gpu_timing.recorded([lambda: Stream.log.append("run")])
    assert Stream.log == ["side waits for main", "run", "main waits for side", "run"]


class FakeGraph:
    def replay(self) -> None:
        pass


def test_targets_are_named_as_measured():
    assert set(gpu_parts.HOST_TIMES) | set(gpu_parts.ADDED_TIMES) <= set(TARGETS)
