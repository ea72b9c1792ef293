"""Each kind of bad input to `extract`: its own message, its exit code, and nothing stored is touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs import config, store_bits, write_random_samples
from models import save_tiny_llama
from safetensors.torch import load_file, save_file

from extractor.cli import main
from extractor.engines.transformers import TransformersEngine
from extractor.errors import EngineError, FingerprintError
from extractor.extraction import extract
from extractor.job_setup import check_input, disk_bytes, make_job
from extractor.samples import write_samples
from extractor.store import Store
from extractor.store.lock import RunLock


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("llama"), max_positions=64)


@pytest.fixture
def samples(tmp_path):
    return write_random_samples(tmp_path / "samples.parquet", [4, 9])


def _extract(capsys, samples, model, out, *options):
    """(exit code, stderr) of the command with the Transformers engine; stdout must stay empty on errors."""
    argv = ["extract", str(samples), "--model", str(model), "--out", str(out), "--engine", "transformers"]
    try:
        code = main([*argv, "--layers", "1,2,3", *options])
    except SystemExit as stopped:  # argparse
        code = stopped.code
    captured = capsys.readouterr()
    if code in (1, 2):
        assert captured.out == ""
    return code, captured.err


def _one_line(error):
    lines = [line for line in error.splitlines() if line.startswith("extractor extract:")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"sample_id": "a", "input_ids": [1, 256]}], "'a'.*token id 256 at position 1.*0 to 255"),
        ([{"sample_id": "a", "input_ids": [1, -5]}], "token id -5"),
        ([{"sample_id": "a", "input_ids": []}], "'a'.*no tokens"),
        ([{"sample_id": "a", "input_ids": [1] * 65}], "'a' has 65 tokens.*at most 64.*--max-length 64"),
        ([{"sample_id": "a", "input_ids": [1]}, {"sample_id": "a", "input_ids": [2]}], "'a' stands more than once"),
    ],
)
def test_bad_samples(rows, message, model, tmp_path, capsys):
    write_samples(tmp_path / "bad.parquet", rows)
    code, error = _extract(capsys, tmp_path / "bad.parquet", model, tmp_path / "store")
    assert code == 1
    assert re.search(message, _one_line(error))
    assert not (tmp_path / "store").exists()


def test_missing_empty_and_foreign_samples_files(model, tmp_path, capsys):
    code, error = _extract(capsys, tmp_path / "none.parquet", model, tmp_path / "store")
    assert code == 1
    assert "does not exist" in _one_line(error)
    (tmp_path / "zero.parquet").write_bytes(b"")
    code, error = _extract(capsys, tmp_path / "zero.parquet", model, tmp_path / "store")
    assert code == 1
    assert "not a readable Parquet file" in _one_line(error)
    pq.write_table(pa.table({"sample_id": ["a"], "input_ids": ["1 2 3"]}), tmp_path / "text.parquet")
    code, error = _extract(capsys, tmp_path / "text.parquet", model, tmp_path / "store")
    assert code == 1
    assert "type string, expected list" in _one_line(error)


@pytest.mark.parametrize(
    ("layers", "message"),
    [("1,9", "[9] do not exist in a model of 6 layers"), ("3,3", "duplicate"), ("1,x", "not a list of layer ids")],
)
def test_bad_layers(layers, message, samples, model, tmp_path, capsys):
    code, error = _extract(capsys, samples, model, tmp_path / "store", "--layers", layers)
    assert code == 2
    assert message in _one_line(error)


def test_negative_layer(samples, model, tmp_path, capsys):
    code, error = _extract(capsys, samples, model, tmp_path / "store", "--layers=-1")
    assert code == 2
    assert "[-1] do not exist" in _one_line(error)


@pytest.mark.parametrize(
    "options", [["--tp", "0"], ["--token-budget", "-1"], ["--tp", "2"], ["--commit-seconds", "0"], ["--dtype", "int8"]]
)
def test_bad_options_are_usage_errors(options, samples, model, tmp_path, capsys):
    code, _ = _extract(capsys, samples, model, tmp_path / "store", *options)
    assert code == 2


def test_options_of_replicas_need_replicas(samples, model, tmp_path, capsys):
    """Also where they say what holds anyway: whoever gives one expects Ray."""
    given = ["--ray-address", "auto", "--shard-dir", "/nvme", "--no-recompute-lost"]
    code, error = _extract(capsys, samples, model, tmp_path / "store", *given)
    assert code == 2
    assert "--ray-address, --shard-dir, --recompute-lost would do nothing without --replicas" in _one_line(error)
    assert not (tmp_path / "store").exists()


def test_model_folders_that_are_none(samples, model, tmp_path, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    for folder, message in ((tmp_path / "no", "does not exist"), (bare, "no config.json")):
        code, error = _extract(capsys, samples, folder, tmp_path / "store")
        assert code == 1
        assert message in _one_line(error)
    shutil.copy(model / "config.json", bare)
    code, error = _extract(capsys, samples, bare, tmp_path / "store")
    assert code == 1
    assert "no weights" in _one_line(error)
    (bare / "config.json").write_text("{")
    code, error = _extract(capsys, samples, bare, tmp_path / "store")
    assert code == 1
    assert "can't be read" in _one_line(error)


def test_output_folder_that_holds_something_else(samples, model, tmp_path, capsys):
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter1.tex").write_text("keep me")
    code, error = _extract(capsys, samples, model, out)
    assert code == 1
    assert "chapter1.tex" in _one_line(error)
    assert [entry.name for entry in out.iterdir()] == ["chapter1.tex"]


def test_store_of_another_configuration(samples, model, tmp_path, capsys):
    out = tmp_path / "store"
    extract(config(model, samples, out, layers="1,2,3", last=False))
    before = store_bits(out)
    code, error = _extract(capsys, samples, model, out, "--dtype", "bfloat16", "--overflow", "error")
    assert code == 1
    for part in ("dtype", "float16", "bfloat16", "overflow", "saturate", "error"):
        assert part in error
    assert store_bits(out) == before


def test_other_samples_are_refused(samples, model, tmp_path, capsys):
    extract(config(model, samples, tmp_path / "store", layers="1,2,3", last=False))
    other = write_random_samples(tmp_path / "other.parquet", [4, 9], seed=1)
    code, error = _extract(capsys, other, model, tmp_path / "store")
    assert code == 1
    assert "samples_hash" in error


def test_not_enough_disk(samples, model, tmp_path, capsys, monkeypatch):
    from extractor.disk import DiskSpace

    tiny = DiskSpace(total_bytes=100, free_bytes=10, reserved_bytes=0, quota_left_bytes=None)
    monkeypatch.setattr("extractor.disk.disk_space", lambda path: tiny)
    code, error = _extract(capsys, samples, model, tmp_path / "store")
    assert code == 1
    seals, pages = 2 * 512 + 13 * 5, (2 + 2) * 4096  # a page for each tile and each seal
    assert f"needs {13 * 3 * 64 * 2 + seals + pages:,} bytes" in _one_line(error)
    assert "10 bytes free" in _one_line(error)
    assert not (tmp_path / "store").exists()


def test_a_run_that_continues_counts_what_its_codec_saves(model, tmp_path):
    out, samples = tmp_path / "store", write_random_samples(tmp_path / "samples.parquet", [40, 40], seed=0)
    settings = config(model, samples, out, layers="1,2,3", last=False, codec="shuffle-zstd")
    info, file = check_input(settings)
    job = make_job(settings, info, (1, 2, 3), set(file.sample_ids))
    pages = 2 * 512 + 80 * 5 + 4 * 4096
    assert disk_bytes(job, 2) == 80 * 384 + pages
    extract(settings)
    stored = int(Store.open(out).stored_bytes.sum())
    assert stored < 0.97 * 80 * 384
    assert disk_bytes(job, 2) == stored + pages


def test_force_overrides_the_disk_check(samples, model, tmp_path, capsys, monkeypatch):
    from extractor.disk import DiskSpace

    tiny = DiskSpace(total_bytes=100, free_bytes=10, reserved_bytes=0, quota_left_bytes=None)
    monkeypatch.setattr("extractor.disk.disk_space", lambda path: tiny)
    with pytest.warns(UserWarning, match="still needs"):
        code, _ = _extract(capsys, samples, model, tmp_path / "store", "--force")
    assert code == 0


def test_values_that_are_not_finite_are_stored_listed_and_exit_3(tmp_path, capsys):
    model = save_tiny_llama(tmp_path / "model", max_positions=64)
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][7, 5] = float("inf")
    weights["model.embed_tokens.weight"][9, 0] = 1e5
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    rows = [
        {"sample_id": "fine", "input_ids": [1, 2]},
        {"sample_id": "inf", "input_ids": [1, 2, 7]},
        {"sample_id": "large", "input_ids": [9]},
    ]
    write_samples(tmp_path / "samples.parquet", rows)
    code, _ = _extract(capsys, tmp_path / "samples.parquet", model, tmp_path / "store", "--layers", "0,3,5")
    assert code == 3
    (listed,) = (tmp_path / "store" / "runs").glob("*.findings.jsonl")
    findings = {(f["sample_id"], f["layer_id"], f["kind"]): f for f in map(json.loads, listed.read_text().splitlines())}
    first = findings["inf", 0, "inf"]
    assert (first["position"], first["count"], first["detail"]) == (2, 1, "channel 5")
    assert {("inf", 3, "inf"), ("inf", 3, "nan")} & set(findings)
    assert findings["large", 0, "saturated"]["count"] == 1
    assert not [key for key in findings if key[0] == "fine"]
    store = Store.open(tmp_path / "store")
    assert store["inf"].hidden_states[2, 0, 5] == float("inf")
    assert store["large"].hidden_states[0, 0, 0] == 65504
    assert store["large"].stats["max_abs"][0] == pytest.approx(1e5)


def test_success_prints_one_json_document(samples, model, tmp_path, capsys):
    argv = ["extract", str(samples), "--model", str(model), "--out", str(tmp_path / "store"), "--layers", "1,2,3"]
    code = main([*argv, "--engine", "transformers", "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert code == 0
    assert summary["samples"] == 2
    assert summary["tokens"] == 13
    assert summary["bytes"] == 13 * 3 * 64 * 2


def test_other_weights_under_the_same_name_are_refused(samples, tmp_path, capsys):
    """A checkpoint that was overwritten in place: one matrix in the middle of the file, all sizes as before."""
    model = save_tiny_llama(tmp_path / "model", max_positions=64)
    out = tmp_path / "store"
    assert _extract(capsys, samples, model, out)[0] == 0
    before = store_bits(out)
    weights = load_file(model / "model.safetensors")
    weights["model.layers.3.mlp.down_proj.weight"] *= 100
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    more = write_random_samples(tmp_path / "samples.parquet", [4, 9, 5])
    code, error = _extract(capsys, more, model, out)
    assert code == 1
    assert "model_weights_hash" in error
    assert store_bits(out) == before


def test_a_start_that_failed_does_not_block_the_corrected_one(samples, model, tmp_path, capsys, monkeypatch):
    def fails(*_):
        raise EngineError("no such engine argument; correct it")

    with monkeypatch.context() as patch:
        patch.setattr(TransformersEngine, "__init__", fails)
        assert _extract(capsys, samples, model, tmp_path / "store", "--overflow", "error")[0] == 1
    code, error = _extract(capsys, samples, model, tmp_path / "store")
    assert code == 0, error
    assert Store.open(tmp_path / "store").manifest.options["overflow"] == "saturate"


def test_a_second_run_at_the_same_time_is_refused(samples, model, tmp_path, capsys, monkeypatch):
    """Also while the first one still loads its model, and not by a rank that the first one forked."""
    out = tmp_path / "store"
    answers = []
    run = TransformersEngine.run

    def run_with_a_rival(self, *args):
        if not answers:
            answers.append(_extract(capsys, samples, model, out))
        return run(self, *args)

    monkeypatch.setattr(TransformersEngine, "run", run_with_a_rival)
    extract(config(model, samples, out, layers="1,2,3", last=False, canary=0))
    code, error = answers[0]
    assert code == 1
    assert f"is in use by process {os.getpid()}" in error
    assert len(Store.open(out)) == 2
    with RunLock(out, shared=True), RunLock(out, shared=True):
        pass
    holder = RunLock(out, shared=False)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"forked")
        time.sleep(60)
        os._exit(0)
    assert os.read(told, 6)
    holder.__exit__()
    with RunLock(out, shared=False):
        os.kill(child, 9)
    os.waitpid(child, 0)


def test_a_model_that_was_moved_or_renamed_continues_its_store(model, tmp_path, capsys):
    samples, out = write_random_samples(tmp_path / "samples.parquet", [4, 9, 6]), tmp_path / "store"
    first, second = tmp_path / "first", tmp_path / "elsewhere" / "second"
    shutil.copytree(model, first)
    extract(config(first, samples, out), share=(0, 2))
    assert len(Store.open(out)) < 3
    second.parent.mkdir()
    first.rename(second)
    extract(config(second, samples, out))
    assert len(Store.open(out)) == 3
    assert Store.open(out).manifest.model_name == "first"
    extract(config(model, samples, tmp_path / "whole"))
    assert store_bits(out) == store_bits(tmp_path / "whole")
    weights = load_file(second / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, second / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(FingerprintError, match="model_name: store 'first', this run 'second'.*model_weights_hash"):
        extract(config(second, samples, out))
