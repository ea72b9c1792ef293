"""What the product is measured for: the ring's way to the host, and what a step costs the engine.

A `Capture` with a job's slots and a sink that does nothing. Bytes are counted as delivered to the sink.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import torch

from extractor import ring_size
from extractor.bench.gpu_speed import Plan
from extractor.bench.gpu_timing import MATRIX, Work, elapsed_on_device
from extractor.capture import Capture, Chunk

HIDDEN, STEP_TOKENS = 7168, 8192
STEPS, BURSTS = 20, 200
# (rows of a step, layers, chunks): all rows of a long prefill step, one of eight ranks' share of it, a decode step.
STEP_SIZES = ((8192, 3, 4), (8192, 4, 4), (1024, 3, 4), (32, 3, 32))


class Nothing:
    """A sink that is never in the way."""

    def write(self, chunk: Chunk, rows: np.ndarray, counts: np.ndarray) -> None:
        pass


class Product:
    """A capture and the tensors and chunks of its steps."""

    def __init__(self, rows: int, layers: int = 3, num_chunks: int = 1, hidden: int = HIDDEN) -> None:
        each = rows // num_chunks
        self.chunks = [Chunk(str(number), 0, number * each, each) for number in range(num_chunks)]
        self.layers = [torch.randn(rows, hidden, device="cuda").bfloat16() for _ in range(layers)]
        self.capture = open_capture(layers, hidden)
        self.step_bytes = rows * layers * hidden * 2

    def step(self) -> None:
        self.capture.step(self.layers, self.chunks)

    def steps(self) -> None:
        """Many steps, until the sink has all of them."""
        for _ in range(STEPS):
            self.step()
        self.capture.drain()


def open_capture(layers: int, hidden: int) -> Capture:
    return Capture(
        num_layers=layers,
        hidden_size=hidden,
        dtype=torch.float16,
        device=torch.device("cuda"),
        slot_rows=ring_size.slot_rows(layers * hidden * 2, STEP_TOKENS),
        num_slots=ring_size.num_slots(layers * hidden * 2, STEP_TOKENS),
        sink=Nothing(),
    )


def plans(closing: ExitStack) -> Iterator[Plan]:
    """Rates of delivery by the wall clock, over steps that follow each other without a forward pass between them."""

    def prepare(rows: int, layers: int, chunks: int) -> Work:
        product = Product(rows, layers, chunks)
        closing.callback(product.capture.close)
        return Work(product.step_bytes * STEPS, product.steps, parts=STEPS, by_clock=True)

    for size in STEP_SIZES:
        yield f"ring, {size[0]} rows x {size[1]} x {HIDDEN}", lambda size=size: prepare(*size)


def host_time(num_chunks: int) -> float:
    """Median microseconds of the engine's thread for a step of 32 rows that finds a free slot."""
    product = Product(32, num_chunks=num_chunks)
    product.steps()
    stalled = product.capture.stats.stalled_seconds
    times = [taken for _ in range(BURSTS) for taken in burst(product)]
    waited = product.capture.stats.stalled_seconds - stalled
    product.capture.close()
    if waited:
        raise RuntimeError(
            f"the ring made the engine wait for {waited * 1e6:.0f} us, so the time is not the step's own"
        )
    return statistics.median(times) * 1e6


def burst(product: Product) -> list[float]:
    """Seconds of as many steps as find a free slot without waiting."""
    times = []
    for _ in range(product.capture.stats.num_slots):
        started = time.perf_counter()
        product.step()
        times.append(time.perf_counter() - started)
    product.capture.drain()
    return times


def added_step_time(tokens: int, matrices: int, rows: int) -> float:
    """Per cent that capture adds to a stand-in for a model step: `matrices` products [tokens, 8192] x [8192, 8192]."""
    weights = torch.randn(MATRIX, MATRIX, device="cuda").bfloat16()
    x, y = torch.randn(2, tokens, MATRIX, device="cuda").bfloat16()
    product = Product(rows)

    def forward() -> None:
        for _ in range(matrices):
            torch.mm(x, weights, out=y)

    def captured() -> None:
        forward()
        product.step()

    bare, with_capture = in_turn((forward, captured), product.capture.drain)
    product.capture.close()
    return (with_capture / bare - 1) * 100


def in_turn(variants: Sequence[Callable[[], None]], after: Callable[[], None], rounds: int = 6) -> list[float]:
    """Median seconds on the device of ten calls of each variant, which take turns; one round is not counted."""
    times: list[list[float]] = [[] for _ in variants]
    for _ in range(rounds):
        for variant, taken in zip(variants, times, strict=True):
            taken.append(elapsed_on_device(lambda variant=variant: [variant() for _ in range(10)]))
            after()
    return [statistics.median(taken[1:]) for taken in times]
