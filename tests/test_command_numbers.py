"""Numbers out of range are wrong usage, whatever command they are given to, and nothing is approved unseen."""

import argparse
import dataclasses
import math
from pathlib import Path

import pytest
from store_samples import a_manifest, rows_of, write_samples

from extractor.cli import _parser, main
from extractor.compaction import compact
from extractor.config import Config
from extractor.errors import StoreError, UsageError
from extractor.fidelity import LayerError
from extractor.integrity import check_store
from extractor.planning import PlanConfig
from extractor.replicas.options import ReplicaOptions
from extractor.store import Store, prepare_store
from extractor.verify import ReferenceReport, verify_reference

PATHS = {"samples": Path("s"), "model": Path("m"), "out": Path("o")}
# Options whose range their dataclass checks (below, and in tests of prepare and plan), and seeds: any integer.
CHECKED_LATER = {
    *(item.name for kind in (Config, ReplicaOptions, PlanConfig) for item in dataclasses.fields(kind)),
    *("max_length", "workers", "max_record_bytes", "show", "seed"),
}


def commands():
    (subparsers,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    return subparsers.choices


def test_every_number_of_a_command_has_a_range():
    for name, parser in commands().items():
        for action in parser._actions:
            allowed = CHECKED_LATER if name in ("extract", "plan", "prepare", "verify") else ()
            assert action.type not in (int, float) or action.dest in allowed, (name, action.dest)


@pytest.mark.parametrize(
    "line",
    [
        "verify s --samples 0 --reference m",
        "verify s --samples -1 --reference m",
        "verify s --samples nan --reference m",
        "verify s --workers 0",
        "compact s --min-dead nan",
        "compact s --min-dead -0.1",
        "compact s --min-dead 1.1",
        "import f --from specforge --model m --out o --pad-token -1",
        "plan d --hidden-size 0 --num-layers 4",
        "plan d --hidden-size 8 --num-layers -4",
        "plan d --max-length 0",
        "plan d --caps 0",
        "plan d --seed -1",
        "plan d --calibrate 0",
        "plan d --calibrate 1 --repeats 0",
        "plan d --calibrate 1 --tp 0",
        "plan d --replicas 0",
        "plan d --rate nan",
        "plan d --baseline nan/3",
        "extract s --model m --out o --tp 0",
        "extract s --model m --out o --token-budget 0",
        "extract s --model m --out o --commit-seconds nan",
        "extract s --model m --out o --canary -1",
        "extract s --model m --out o --replicas -1",
        "prepare d --tokenizer t --out o --workers -1",
        "prepare d --tokenizer t --out o --max-length -1",
    ],
)
def test_a_number_out_of_range_is_wrong_usage(line, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "--" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [Config, ReplicaOptions])
def test_every_number_of_the_options_has_a_range(kind):
    paths = PATHS if kind is Config else {}
    for item in dataclasses.fields(kind):
        numbers = {int: [-2], float: [0.0, -1.0, math.nan, math.inf]}.get(type(item.default), [])
        for number in numbers:
            with pytest.raises(UsageError, match="--" + item.name.replace("_", "-")):
                kind(**paths, **{item.name: number})


def test_nothing_compared_is_nothing_approved(tmp_path):
    store = Store.open(prepare_store(tmp_path / "s", a_manifest()).path)
    for count in (0, -1):
        with pytest.raises(UsageError, match="at least 1"):
            verify_reference(store, tmp_path, count)
    assert not ReferenceReport([], [LayerError(layer_id=2)]).ok
    assert not ReferenceReport(["s"], [LayerError(layer_id=2)]).ok
    assert ReferenceReport(["s"], [LayerError(layer_id=2, elements=1)]).ok


def test_an_empty_store_can_not_be_approved(tmp_path, monkeypatch):
    store = Store.open(prepare_store(tmp_path / "s", a_manifest()).path)
    monkeypatch.setattr("extractor.verify._check_model", lambda *_: None)
    with pytest.raises(StoreError, match="holds no samples"):
        verify_reference(store, tmp_path, 1)


def test_what_to_recompute_needs_a_model_to_do_it(tmp_path, capsys):
    for option in ("--samples", "--seed"):
        assert main(["verify", str(tmp_path), option, "3"]) == 2
        assert "--reference" in capsys.readouterr().err


def test_the_library_checks_its_own_numbers(tmp_path):
    with pytest.raises(UsageError, match="0 workers"):
        check_store(tmp_path, workers=0)
    for share in (-0.1, 1.5, math.nan):
        with pytest.raises(UsageError, match="min_dead_share"):
            compact(tmp_path, min_dead_share=share)


def test_another_seed_compares_other_samples(tmp_path, monkeypatch):
    path = prepare_store(tmp_path / "s", manifest := a_manifest(options={"compute_dtype": "float32"})).path
    write_samples(path, {f"s{i}": rows_of(i, 2, manifest) for i in range(20)})
    monkeypatch.setattr("extractor.verify._check_model", lambda *_: None)
    monkeypatch.setattr("extractor.verify._readers", lambda *_: None)
    monkeypatch.setattr("extractor.verify._compare", lambda *_: None)
    store = Store.open(path)
    drawn = [tuple(verify_reference(store, tmp_path, 3, seed=seed).samples) for seed in (0, 0, 1, 2)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_the_seed_reaches_the_comparison(tmp_path, monkeypatch, capsys):
    path = prepare_store(tmp_path / "s", a_manifest()).path
    seeds = []

    def fake(store, model, count, *, seed, **_):
        seeds.append((count, seed))
        return ReferenceReport(["a"], [LayerError(layer_id=2, elements=1)])

    monkeypatch.setattr("extractor.verify.verify_reference", fake)
    for options in ([], ["--seed", "7", "--samples", "2"]):
        assert main(["verify", str(path), "--reference", "m", *options]) == 0
    assert seeds == [(4, 0), (2, 7)]
