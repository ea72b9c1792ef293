"""torch.cuda as far as bench/gpu_*.py asks for it, on the CPU: everything is done at once, in the order of the calls.

It shows that the script runs from end to end and compares what it says it compares. Order, speed and whatever CUDA
itself refuses are not modelled.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class OnCpu(TorchFunctionMode):
    """Tensors asked for on a CUDA device, or in pinned memory, are ordinary ones."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: _moved(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return function(*(_moved(value) for value in args), **kwargs)


def _moved(value: Any) -> Any:
    is_cuda = value == "cuda" if isinstance(value, str) else isinstance(value, torch.device) and value.type == "cuda"
    return CPU if is_cuda else value


class Event:
    """The time at which it was recorded."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self, stream: object = None) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) * 1e3 + 1e-6


class Stream:
    """Keeps what was asked of any stream in `log`."""

    log: list[str] = []

    def __init__(self, name: str = "side") -> None:
        self.name = name

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        pass

    def synchronize(self) -> None:
        time.sleep(0.02)  # lets others have the interpreter


def run_all(calls: Sequence[Callable[[], object]]) -> Callable[[], None]:
    """In place of gpu_timing.recorded: the calls run once, and again at each replay."""

    def replay() -> None:
        for call in calls:
            call()

    replay()
    return replay


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    Stream.log = []
    main = Stream("main")
    standins = {
        "is_available": lambda: True,
        "get_device_name": lambda: "a stand-in",
        "get_device_capability": lambda: (9, 0),
        "device_count": lambda: 1,
        "synchronize": lambda: None,
        "current_stream": lambda device=None: main,
        "stream": lambda stream: contextlib.nullcontext(),
        "Stream": Stream,
        "Event": Event,
    }
    for name, value in standins.items():
        monkeypatch.setattr(torch.cuda, name, value)
