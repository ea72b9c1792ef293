"""The canary: silent in a good run, loud when the engine gives other rows the second time."""

from __future__ import annotations

import json

import architectures
import numpy as np
import pytest
from engine_runs import make_samples

from extractor import Config, extract
from extractor.canary import row_distance, wrong_rows
from extractor.engines.transformers import ResidualReader

LENGTHS = (5, 17, 1, 30)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return architectures.save("llama", tmp_path_factory.mktemp("llama"))


def _extract(tmp_path, model, **options):
    samples = make_samples(tmp_path / "s.parquet", LENGTHS)
    return extract(
        Config(samples=samples, model=model, out=tmp_path / "store", engine="transformers", layers="2,4", **options)
    )


def test_a_good_run_stays_silent_and_leaves_nothing(tmp_path, model):
    summary = _extract(tmp_path, model)
    assert (summary.samples, summary.findings, summary.exit_code) == (4, 0, 0)
    assert not list((tmp_path / "store" / "runs").glob("*.canary"))


def test_rows_of_another_sample_are_noticed(tmp_path, model, monkeypatch):
    read, calls = ResidualReader.read, []

    def stale_once(self, token_ids, layer_ids):
        calls.append(token_ids)
        return read(self, token_ids[::-1].copy() if len(calls) == 2 else token_ids, layer_ids)

    monkeypatch.setattr(ResidualReader, "read", stale_once)
    summary = _extract(tmp_path, model)
    found = [json.loads(line) for line in summary.findings_file.read_text().splitlines()]
    assert {(f["kind"], f["sample_id"]) for f in found} == {("canary", "s1")}
    assert {f["layer_id"] for f in found} == {2, 4}
    assert summary.exit_code == 3


def test_it_can_be_turned_off(tmp_path, model, monkeypatch):
    monkeypatch.setattr("extractor.canary._differences", None)
    assert _extract(tmp_path, model, canary=0).exit_code == 0


def test_row_distance():
    a = np.array([[3.0, 4.0], [3.0, 4.0], [np.nan, 1.0], [np.inf, 1.0], [np.nan, 1.0]], np.float16)
    b = np.array([[3.0, 4.0], [4.0, 4.0], [np.nan, 1.0], [np.inf, 1.0], [0.0, 1.0]], np.float16)
    np.testing.assert_allclose(row_distance(a, b), [0.0, 0.2, 0.0, 0.0, np.inf])


@pytest.mark.parametrize(
    ("compute", "rows", "wrong"),
    [
        ("float32", {3: 0.011}, [3]),
        ("bfloat16", {3: 0.3, 5: 0.12}, []),  # a router's near-ties
        ("bfloat16", {3: 0.6, 5: 0.12}, [3]),  # a row of another token
        ("bfloat16", dict.fromkeys(range(5, 11), 0.2), [5, 6, 7, 8, 9, 10]),  # a chunk of another layer
        ("bfloat16", dict.fromkeys(range(5, 10), 0.2), []),
        ("float16", dict.fromkeys(range(20), np.inf), list(range(20))),
    ],
)
def test_which_rows_rounding_does_not_explain(compute, rows, wrong):
    distance = np.full(20, 0.004)
    for row, value in rows.items():
        distance[row] = value
    assert wrong_rows(distance, compute)[0].tolist() == wrong
