"""Timed short extractions: what is run, what rate comes out, and how sure it is. The real engine runs once, small."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from extractor.budget.calibration import Calibration, calibrate
from extractor.budget.lengths import LengthCounts
from extractor.config import Config
from extractor.errors import EngineError, UsageError
from extractor.planning import PlanConfig, plan
from extractor.samples import SamplesFile, write_samples


@dataclass
class Run:
    tokens: int
    seconds: float
    interrupted: bool = False
    warm_up_seconds: float = 0.0

    @property
    def steady_tokens_per_s(self) -> float:
        return self.tokens / (self.seconds - self.warm_up_seconds)


class FakeExtract:
    """Takes the given seconds, one after the other, and keeps what it was asked to extract."""

    def __init__(self, *seconds: float, interrupted: bool = False) -> None:
        self._seconds: Iterator[float] = iter(seconds)
        self._interrupted = interrupted
        self.configs: list[Config] = []
        self.samples: list[dict[str, list[int]]] = []

    def __call__(self, config: Config) -> Run:
        assert not config.out.exists()
        config.out.mkdir()
        samples = {s.sample_id: s.token_ids.tolist() for s in SamplesFile(config.samples)}
        self.configs.append(config)
        self.samples.append(samples)
        return Run(sum(map(len, samples.values())), next(self._seconds), self._interrupted)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"hidden_size": 16, "num_hidden_layers": 30, "vocab_size": 9}))
    return folder


def task(model: Path, **options) -> Calibration:
    return Calibration(**{"model": model, "samples": 4, **options})


LENGTHS = LengthCounts.of([5] * 10 + [20] * 10)


def test_the_median_of_the_repeats_and_their_spread(model):
    extract = FakeExtract(50.0, 40.0, 60.0)
    rate, caution = calibrate(task(model), LENGTHS, [], extract)
    tokens = sum(map(len, extract.samples[0].values()))
    assert rate.tokens_per_s == tokens / 50
    assert (rate.slowest_tokens_per_s, rate.fastest_tokens_per_s) == (tokens / 60, tokens / 40)
    assert rate.repeats == 3
    assert rate.origin == f"3 timed runs of 4 samples, {tokens} tokens, with vllm, without each run's first 2 steps"
    assert caution == ""


def test_short_runs_are_cautioned_against(model):
    _, caution = calibrate(task(model), LENGTHS, [], FakeExtract(1.0, 2.0, 3.0))
    assert caution.startswith("each timed run took 2.0 s, 0.0 s of it the first steps, which are left out; runs")


def test_what_warms_up_is_not_in_the_rate(model):
    rate, _ = calibrate(task(model), LENGTHS, [], lambda config: Run(100, 12.0, warm_up_seconds=10.0))
    assert rate.tokens_per_s == 50


def test_what_is_run_is_what_is_planned(model, tmp_path):
    extract = FakeExtract(1.0, 1.0)
    options = {"repeats": 2, "engine": "transformers", "layers": "2,3", "last": True, "codec": "shuffle-zstd"}
    calibrate(task(model, out=tmp_path / "disk" / "store", **options), LENGTHS, [], extract)
    for config in extract.configs:
        assert config.model == model
        assert (config.engine, config.layers, config.last, config.codec) == (
            "transformers",
            "2,3",
            True,
            "shuffle-zstd",
        )
        assert config.out.is_relative_to(tmp_path)  # the disk of --out
    assert extract.configs[0].out != extract.configs[1].out
    assert extract.samples[0] == extract.samples[1]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]  # nothing is left


def test_lengths_are_drawn_from_the_corpus(model):
    extract = FakeExtract(1.0)
    calibrate(task(model, samples=20, repeats=1), LENGTHS, [], extract)
    lengths = [len(ids) for ids in extract.samples[0].values()]
    assert sorted(lengths) == [5] * 10 + [20] * 10
    assert lengths != sorted(lengths)


def test_random_ids_stay_in_the_vocabulary(model):
    extract = FakeExtract(1.0)
    calibrate(task(model, samples=20, repeats=1), LENGTHS, [], extract)
    ids = np.concatenate(list(extract.samples[0].values()))
    assert set(ids.tolist()) == set(range(9))


def test_ids_are_cut_out_of_samples_files(model, tmp_path):
    file = tmp_path / "samples.parquet"
    write_samples(file, [{"sample_id": "a", "input_ids": [1, 2, 3]}, {"sample_id": "b", "input_ids": [4, 5]}])
    extract = FakeExtract(1.0)
    calibrate(task(model, samples=2, repeats=1), LengthCounts.of([3, 4]), [file], extract)
    text = [token for ids in extract.samples[0].values() for token in ids]
    assert text == [1, 2, 3, 4, 5, 1, 2]  # one piece after the other, the pool repeating


def test_a_run_that_stored_nothing_gives_no_rate(model):
    with pytest.raises(EngineError, match="stored .* tokens in 0.0 s"):
        calibrate(task(model), LENGTHS, [], FakeExtract(0.0))


def test_an_interrupted_run_stops_the_plan(model):
    with pytest.raises(KeyboardInterrupt):
        calibrate(task(model), LENGTHS, [], FakeExtract(1.0, interrupted=True))


@pytest.mark.parametrize(
    ("options", "message"), [({"samples": 0}, "--calibrate is 0"), ({"repeats": 0}, "--repeats is 0")]
)
def test_wrong_numbers(model, options, message):
    with pytest.raises(UsageError, match=message):
        task(model, **options)


def test_a_plan_uses_the_timed_rate_on_what_is_chosen(model, tmp_path):
    lines = [json.dumps({"seq_len": n}) for n in [10] * 6 + [50] * 2]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    config = PlanConfig(data=(tmp_path / "d.jsonl",), model=model, calibrate=8, max_length=20)
    extract = FakeExtract(10.0, 20.0, 40.0)
    result = plan(config, extract)
    assert sorted(len(ids) for ids in extract.samples[0].values()) == [10] * 6 + [20] * 2
    assert result.rate.tokens_per_s == 100 / 20
    assert result.chosen.hours == 100 / 5 / 3600
    assert result.as_json()["rate"]["spread"] == pytest.approx((10 - 2.5) / 5)
    assert "each timed run took 20.0 s," in result.notes[0]
    with pytest.raises(UsageError, match="--calibrate runs the model"):
        plan(replace(config, model=None, hidden_size=4, num_layers=30))
    with pytest.raises(UsageError, match="--rate and --calibrate both say"):
        replace(config, rate="3")


def test_the_real_engine_once(tmp_path, capsys):
    pytest.importorskip("transformers")
    from models import save_tiny_llama

    from extractor.cli import main

    model = save_tiny_llama(tmp_path / "model", num_layers=8)
    (tmp_path / "d.jsonl").write_text("\n".join(json.dumps({"seq_len": n}) for n in range(1, 60)))
    arguments = ["plan", str(tmp_path / "d.jsonl"), "--model", str(model), "--calibrate", "5", "--repeats", "2"]
    arguments += ["--engine", "transformers", "--out", str(tmp_path / "out"), "--look", str(tmp_path), "--json"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rate"]["repeats"] == 2
    assert 0 < document["rate"]["slowest_tokens_per_s"] <= document["rate"]["tokens_per_s"]
    assert document["total"]["hours"] == 1770 / document["rate"]["tokens_per_s"] / 3600
