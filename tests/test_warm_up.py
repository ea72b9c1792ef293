"""An engine's first steps are left out of the rates that are extrapolated, and of nothing else."""

from __future__ import annotations

import json

import pytest
from jobs import config, write_random_samples
from models import save_tiny_llama

from extractor import warm_up
from extractor.budget.run_records import rate_like
from extractor.engines.job import Progress
from extractor.engines.session import Session
from extractor.extraction import extract
from extractor.progress import rates_text, time_left
from extractor.warm_up import WarmUp, steady_rate


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(warm_up.time, "monotonic", lambda: self.now)


def test_the_first_two_steps_warm_up(monkeypatch):
    clock = Clock(monkeypatch)
    warming = WarmUp()
    for rows, took in ((10, 5.0), (20, 1.0), (40, 0.5), (80, 0.5)):
        clock.now += took
        warming.step(rows)
    assert (warming.tokens, warming.seconds) == (30, 6.0)
    assert steady_rate(150, 7.0, warming.tokens, warming.seconds) == 120


@pytest.mark.parametrize(("tokens", "seconds", "expected"), [(30, 6.0, 5.0), (20, 8.0, 2.5), (0, 0.0, 0.0)])
def test_while_nothing_came_after_it_everything_counts(tokens, seconds, expected):
    assert steady_rate(tokens, seconds, 30, 6.0) == expected


def test_progress_extrapolates_from_what_came_after():
    progress = Progress(tokens=1100, bytes=1_100_000_000, warm_up_tokens=100, warm_up_seconds=9.0)
    assert rates_text(progress, 11.0).startswith("500 tokens/s, 0.500 GB/s, ")
    assert time_left(60_000, progress.tokens_per_s(11.0)) == "0:02:00 left"
    assert time_left(60_000, Progress().tokens_per_s(11.0)) == "time left unknown"


def test_a_slow_first_step_does_not_change_what_a_plan_takes_from_a_run(tmp_path, monkeypatch):
    """A real run whose first step takes half a minute by the clock: 20 steps of 8 tokens, of which 18 count."""
    clock, step, steps = Clock(monkeypatch), Session.step, []

    def slow(self, *arguments):
        clock.now += 0.25 if steps else 30.0
        steps.append(None)
        step(self, *arguments)

    monkeypatch.setattr(Session, "step", slow)
    monkeypatch.setattr("extractor.extraction.time.monotonic", lambda: clock.now)
    samples = write_random_samples(tmp_path / "samples.parquet", [8] * 20)
    model = save_tiny_llama(tmp_path / "model", num_layers=8)
    summary = extract(config(model, samples, tmp_path / "store"))
    assert summary.tokens_per_s < 6
    assert summary.steady_tokens_per_s == pytest.approx(32)
    (file,) = (tmp_path / "store" / "runs").glob("*.json")
    assert json.loads(file.read_text())["warm_up_tokens"] == 16
    assert rate_like(tmp_path / "store").tokens_per_s == pytest.approx(32)
