"""The parts of the check on a GPU, in order: first what matters most, last what may break the device for the others."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch

from extractor.bench import gpu_capture, gpu_equality, gpu_order, gpu_ring, gpu_speed
from extractor.bench.gpu_device import Device, Gpu
from extractor.bench.gpu_measure import measure, shares, single
from extractor.bench.gpu_report import Check, Over, Report, tried
from extractor.implementations import VARIABLE
from extractor.native import NativeLibrary, NativeMissingError, load

COPY_CEILING = gpu_speed.host_copy_name(64 << 20)
HOST_TIMES = {"host time of a step, 32 rows in 1 chunk": 1, "host time of a step, 32 rows in 32 chunks": 32}
# Tokens of a step, matrix products that stand in for its layers, rows that this rank keeps.
ADDED_TIMES = {"time added to a prefill step": (8192, 12, 1024), "time added to a decode step": (256, 60, 32)}


@dataclass(frozen=True, slots=True)
class Run:
    """What every part is given."""

    cuda: NativeLibrary
    seed: int
    report: Report
    has_triton: bool = importlib.util.find_spec("triton") is not None


@dataclass(frozen=True, slots=True)
class Part:
    """`until`: the share of the time after which the part begins nothing more. Unused time goes to later parts."""

    name: str
    half: str
    until: float
    run: Callable[[Run, Over], None]


def kernels(run: Run, over: Over) -> None:
    from extractor.kernels.gather_ref import gather_rows_ref

    gpu = torch.device("cuda")
    for name, gather in (("CUDA", gpu_equality.by_library(run.cuda)), ("torch", gather_rows_ref)):
        run.report.checks.append(gpu_equality.compare(f"{name} = definition", gather, gpu, run.seed, over))
    what = "C++ = definition"
    try:
        cpp = gpu_equality.by_library(load("cpu"))
    except NativeMissingError as reason:
        run.report.checks.append(Check(what, left_out=str(reason)))
    else:
        run.report.checks.append(gpu_equality.compare(what, cpp, torch.device("cpu"), run.seed, over, inside=True))


def ring(run: Run, over: Over) -> None:
    with gathering("cuda"):  # an error, and not Triton, where the library can't be used
        scenarios(Gpu(), run.report, over)


def scenarios(gpu: Device, report: Report, over: Over) -> None:
    for name, scenario in gpu_ring.SCENARIOS.items():
        report.checks.append(tried(f"ring: {name}", partial(scenario, gpu), over))


def order(run: Run, over: Over) -> None:
    for inside in (True, False):
        what = f"order of graph replays, gather {'inside' if inside else 'after'} the graph"
        check = partial(gpu_order.check_order, run.cuda, inside)
        run.report.checks.append(tried(what, check, over, gpu_order.STEPS))


def triton(run: Run, over: Over) -> None:
    what, through = "Triton = definition", "ring by Triton: a late device and reused tensors"
    if not run.has_triton:
        run.report.checks += [Check(name, left_out="Triton is not installed") for name in (what, through)]
        return
    with gathering("triton"):
        run.report.checks.append(tried(through, lambda: gpu_ring.reused(Gpu()), over))

    def gather(*arguments: object, **rest: object) -> None:
        from extractor.kernels.gather import gather_rows_triton

        gather_rows_triton(*arguments, **rest)

    run.report.checks.append(gpu_equality.compare(what, gather, torch.device("cuda"), run.seed, over))


def kernel_speed(run: Run, over: Over) -> None:
    rows = run.report.measured
    measure(gpu_speed.plans(run.cuda), rows, over)
    shares(rows, gpu_speed.DEVICE_COPY, "gather")
    single("host time of a bound call", "us", partial(gpu_speed.host_time, run.cuda), rows, over)


def ring_speed(run: Run, over: Over) -> None:
    rows = run.report.measured
    with gathering("cuda"), ExitStack() as closing:
        measure(gpu_capture.plans(closing), rows, over)
        shares(rows, COPY_CEILING, "ring")
        for what, chunks in HOST_TIMES.items():
            single(what, "us", partial(gpu_capture.host_time, chunks), rows, over)
        for what, sizes in ADDED_TIMES.items():
            single(what, "%", partial(gpu_capture.added_step_time, *sizes), rows, over)


def triton_speed(run: Run, over: Over) -> None:
    rows = run.report.measured
    if run.has_triton:
        measure(gpu_speed.triton_plans(), rows, over)
        shares(rows, gpu_speed.DEVICE_COPY, "gather by Triton")


def other_device(run: Run, over: Over) -> None:
    """Tensors on the second GPU while the first is current."""
    what, through = "CUDA = definition on a GPU that is not current", "ring on a GPU that is not current"
    if torch.cuda.device_count() < 2:
        run.report.checks += [Check(name, left_out="this machine has one GPU") for name in (what, through)]
        return
    second = torch.device("cuda", 1)
    gather = gpu_equality.by_library(run.cuda)
    with gathering("cuda"):
        run.report.checks.append(tried(through, lambda: gpu_ring.reused(Gpu(second)), over))
    run.report.checks.append(gpu_equality.compare(what, gather, second, run.seed, over))


@contextlib.contextmanager
def gathering(implementation: str) -> Iterator[None]:
    """Let the ring gather by this implementation, or fail."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = implementation
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


PARTS = (
    Part("kernels", "equality", 0.25, kernels),
    Part("ring", "equality", 0.35, ring),
    Part("order", "equality", 0.4, order),
    Part("kernel speed", "speed", 0.6, kernel_speed),
    Part("ring speed", "speed", 0.8, ring_speed),
    # The longest: some 40 compilations.
    Part("triton", "equality", 0.97, triton),
    Part("triton speed", "speed", 1.0, triton_speed),
    # A launch on the wrong device is an access that no later call of this process recovers from.
    Part("other device", "equality", 1.0, other_device),
)
