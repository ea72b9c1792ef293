"""vLLM prefill with and without capture in one engine, with the time of each part."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from extractor.config import Config
from extractor.engines.load import engine_class
from extractor.job_setup import check_input, make_job, make_manifest
from extractor.layers import resolve_layers
from extractor.store import prepare_store

Seconds = dict[str, float]


class Prefill:
    """One started engine. `bare` runs the samples with nothing attached: the model returns no hidden states and no
    code of ours runs in a step. `captured` is what `extract` does, from the first sample to the last fsync."""

    def __init__(self, config: Config) -> None:
        info, self._file = check_input(config)
        self._layers = resolve_layers(config.layers, info.num_layers, config.last)
        self._samples = list(self._file)
        self._config, self._info = config, info
        self._engine = engine_class("vllm")(config, max(sample.token_ids.size for sample in self._samples))
        self._vllm = self._engine._engine
        self._clock = _Clock()
        self._vllm.collective_rpc(self._clock.watch_model)
        self.split: dict[str, list[float]] = {}
        self.open_seconds: list[float] = []

    def detach(self) -> None:
        self._vllm.collective_rpc(_set_layers, args=((),))

    def attach(self) -> None:
        """An empty store and an open session, made once a run."""
        shutil.rmtree(self._config.out, ignore_errors=True)
        prepare_store(self._config.out, make_manifest(self._config, self._info, self._layers, self._file))
        (self._config.out / "runs").mkdir()
        self._vllm.collective_rpc(_set_layers, args=(tuple(sorted(self._layers)),))
        self._job = make_job(self._config, self._info, self._layers, set(self._file.sample_ids))
        started = time.perf_counter()
        self._vllm.collective_rpc("extractor_start", args=(self._job.as_dict(),))
        self.open_seconds.append(time.perf_counter() - started)
        self._vllm.collective_rpc(self._clock.watch_handover)

    def bare(self) -> None:
        self._clock.seconds.clear()
        started = time.perf_counter()
        for sample in self._samples:
            self._engine._add(sample)
        while self._vllm.has_unfinished_requests():
            self._vllm.step()
        wall = time.perf_counter() - started
        forward = self._clock.seconds["forward"]
        self._note({"bare: forward": forward, "bare: scheduler, sampling": wall - forward})

    def captured(self) -> None:
        self._clock.seconds.clear()
        started = time.perf_counter()
        self._engine._feed(self._job, iter(self._samples), lambda progress: None, lambda: False)
        fed = time.perf_counter()
        (status,) = self._vllm.collective_rpc("extractor_finish")
        wall, last = time.perf_counter() - started, time.perf_counter() - fed
        assert status["tokens"] == self._file.num_tokens, status
        forward, handover = self._clock.seconds["forward"], self._clock.seconds["handover"]
        gather, stall = status["gather_seconds"], status["stalled_seconds"]
        self._note(
            {
                "forward": forward,
                "gather": gather,
                "stall (no free slot)": stall,
                "attribution of rows": handover - gather - stall,
                "end: drain, last commit": last,
                "scheduler, sampling": wall - forward - handover - last,
                "writer thread: wait for copies": status["copy_wait_seconds"],
                "writer thread: write, beside the forward": status["write_seconds"],
            }
        )

    def close(self) -> None:
        self._engine.close()

    def _note(self, parts: Seconds) -> None:
        for name, value in parts.items():
            self.split.setdefault(name, []).append(value)


class _Clock:
    """Seconds inside the model and inside our step, on the engine's thread."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}
        self._started = 0.0

    def watch_model(self, worker: Any) -> None:
        model = worker.model_runner.get_model()
        model.register_forward_pre_hook(lambda *_: self._begin())
        model.register_forward_hook(lambda *_: self._end("forward"))

    def watch_handover(self, worker: Any) -> None:
        step: Callable[[Any], None] = worker._handover.step

        def timed(scheduler_output: Any) -> None:
            self._begin()
            step(scheduler_output)
            self._end("handover")

        worker._handover.step = timed

    def _begin(self) -> None:
        self._started = time.perf_counter()

    def _end(self, name: str) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - self._started


def _set_layers(worker: Any, layers: tuple[int, ...]) -> None:
    runner = worker.model_runner
    runner.get_model().set_aux_hidden_state_layers(layers)
    runner.use_aux_hidden_state_outputs = bool(layers)


def prefill_config(samples: Path, model: Path, out: Path) -> Config:
    return Config(samples=samples, model=model, out=out)
