"""Exports: each is read back by the peer's own code where that can be imported, and always value by value."""

from __future__ import annotations

import json
import pickle
import re
import shlex

import numpy as np
import pytest
import torch
from models import save_final_norm
from peers import HINT
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from store_cases import a_store, content, damage

from extractor.cli import main
from extractor.errors import CorruptError, DiskFullError, InputError, StoreError, UsageError
from extractor.exports import ExportOptions, export_store
from extractor.exports import folder as folder_module
from extractor.exports.final_norm import load_final_norm
from extractor.exports.format import file_stem

LENGTHS = {"a": 5, "b/ü": 21, "c": 1}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """User's slot order 3, 2, 5, then n: trainers want the aux layers ascending."""
    return a_store(tmp_path_factory.mktemp("exports") / "store", LENGTHS, layer_ids=(3, 2, 5, 6))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_final_norm(tmp_path_factory.mktemp("model"))


def expected(name, manifest):
    """(token ids, mask, aux [T, 3, H] ascending, last [T, H]) in float32."""
    token_ids, mask, rows = content(name, LENGTHS[name], manifest)
    rows = torch.from_numpy(rows.astype(np.float32))
    return token_ids.tolist(), mask.tolist(), rows[:, [1, 0, 2]], rows[:, 3]


def rms_norm(last, weight):
    return last / (last.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def test_speculators_reads_files_and_store_alike(tmp_path, store):
    pytest.importorskip("speculators", reason=HINT)
    from speculators.train.data import ArrowDataset

    from extractor.exports.speculators_backend import StoreTransfer

    export_store(store.path, "speculators", tmp_path / "full")
    export_store(store.path, "speculators", tmp_path / "index", ExportOptions(index_only=True))
    assert not (tmp_path / "index" / "hidden_states").exists()
    files = ArrowDataset(512, tmp_path / "full", on_missing="raise", hidden_states_dtype=torch.float32)
    transfer = pickle.loads(pickle.dumps(StoreTransfer(store.path, tmp_path / "index")))  # as to a spawned worker
    direct = ArrowDataset(512, tmp_path / "index", transfer, on_missing="raise", hidden_states_dtype=torch.float32)
    assert len(files) == len(direct) == 3
    for number, name in enumerate(store):
        token_ids, mask, aux, last = expected(name, store.manifest)
        for data in (files, direct):
            row = data[number]
            assert row["input_ids"].tolist() == token_ids
            assert row["loss_mask"].tolist() == mask
            assert torch.equal(row["hidden_states"].float(), aux.flatten(1))
            assert torch.equal(row["verifier_last_hidden_states"].float(), last)


def test_speculators_files(tmp_path, store):
    datasets = pytest.importorskip("datasets")
    summary = export_store(store.path, "speculators", tmp_path / "out")
    assert (summary.samples, summary.tokens, summary.written, summary.dtype) == (3, 27, 3, "float16")
    rows = datasets.load_from_disk(tmp_path / "out")
    counts = dict.fromkeys(range(99), 0)
    for number, name in enumerate(store):
        token_ids, mask, aux, last = expected(name, store.manifest)
        assert rows[number]["sample_id"] == name
        assert rows[number]["seq_len"] == LENGTHS[name]
        assert rows[number]["input_ids"].tolist() == token_ids
        tensors = load_file(tmp_path / "out" / "hidden_states" / f"hs_{number}.safetensors")
        assert tensors["token_ids"].tolist() == token_ids
        assert torch.equal(tensors["hidden_states"].float(), torch.cat([aux, last[:, None]], 1))
        for token, trained in zip(token_ids, mask, strict=True):
            counts[token] += trained
    frequencies = torch.load(tmp_path / "out" / "token_freq.pt", weights_only=True)
    assert frequencies == {token: count for token, count in counts.items() if count}


def test_specforge(tmp_path, store, model):
    export_store(store.path, "specforge", tmp_path / "out", ExportOptions(model=model))
    weight = load_file(model / "m.safetensors")["model.norm.weight"]
    for number, name in enumerate(store):
        token_ids, mask, aux, last = expected(name, store.manifest)
        record = torch.load(tmp_path / "out" / "rows_0-2000" / f"data_{number}.ckpt", weights_only=True)
        assert record["input_ids"].tolist() == token_ids
        assert record["loss_mask"].tolist() == mask
        assert record["aux_hidden_state"].dtype == torch.bfloat16
        assert torch.equal(record["aux_hidden_state"], aux.flatten(1)[None].bfloat16())
        normed = rms_norm(last, weight)
        torch.testing.assert_close(record["hidden_state"][0].float(), normed, rtol=2**-8, atol=0)  # bf16 rounding
        assert not torch.allclose(record["hidden_state"][0].float(), last, rtol=2**-8, atol=0)


def test_specforge_reads_its_files(tmp_path, store, model):
    reader = pytest.importorskip("specforge.runtime.data_plane.offline_reader", reason=HINT)
    from specforge.algorithms.eagle3.data import normalize_offline_sample
    from specforge.runtime.data_plane.feature_store import load_feature_file

    export_store(store.path, "specforge", tmp_path / "out", ExportOptions(model=model, dtype="float32"))
    refs = reader.OfflineManifestReader(str(tmp_path / "out"), validate_files=True).read()
    assert [ref.num_tokens for ref in refs] == [LENGTHS[name] for name in store]
    for ref, name in zip(refs, store, strict=True):
        token_ids, mask, aux, _ = expected(name, store.manifest)
        sample = normalize_offline_sample(load_feature_file(ref.feature_store_uri.removeprefix("file://")), 2048)
        assert sample["input_ids"][0].tolist() == token_ids
        assert sample["loss_mask"][0].tolist() == [*mask[:-1], 0]
        assert torch.equal(sample["hidden_state"][0], aux.flatten(1))
        assert sample["target"].shape == (1, LENGTHS[name], 16)


def test_modelopt(tmp_path, store):
    export_store(store.path, "modelopt", tmp_path / "out")
    for name in store:
        token_ids, mask, aux, last = expected(name, store.manifest)
        record = torch.load(tmp_path / "out" / f"{file_stem(name)}.pt", weights_only=True)
        assert record["conversation_id"] == name
        assert record["input_ids"].tolist() == token_ids
        assert record["loss_mask"].tolist() == mask
        assert record["hidden_states_prenorm"] is True
        assert torch.equal(record["hidden_states"], last.bfloat16())
        assert torch.equal(record["aux_hidden_states"], aux.flatten(1).bfloat16())


def test_modelopt_reads_its_files(tmp_path, store):
    peer = pytest.importorskip("modelopt.torch.speculative.eagle.utils", reason=HINT)
    export_store(store.path, "modelopt", tmp_path / "out")
    files = [tmp_path / "out" / f"{file_stem(name)}.pt" for name in store]
    data = peer.OfflineSupervisedDataset(files, answer_only_loss=True)
    for number, name in enumerate(store):
        token_ids, mask, aux, last = expected(name, store.manifest)
        row = data[number]
        assert row["input_ids"].tolist() == token_ids
        assert row["loss_mask"].tolist() == mask
        assert row["base_hidden_prenorm"] is True
        assert torch.equal(row["base_model_hidden_states"], last.bfloat16())
        assert torch.equal(row["aux_hidden_states"], aux.flatten(1).bfloat16())
    batch = peer.EagleOfflineDataCollator(8)([data[0], data[1]])
    assert batch["base_model_outputs"]["base_hidden_prenorm"] is True


def test_plain_safetensors_are_the_rows_as_stored(tmp_path):
    store = a_store(tmp_path / "s", {"x": 7}, layer_ids=(5, 2), dtype="bfloat16")
    export_store(store.path, "safetensors", tmp_path / "out")
    rows = content("x", 7, store.manifest)[2]
    with safe_open(tmp_path / "out" / "x.safetensors", "pt") as file:
        assert np.array_equal(file.get_tensor("hidden_states").view(torch.uint16).numpy(), rows.view(np.uint16))
        assert file.metadata()["layer_ids"] == "5,2"
        assert file.metadata()["sample_id"] == "x"


@pytest.mark.parametrize("to", ["speculators", "specforge", "modelopt"])
def test_a_store_without_the_last_state_is_refused(tmp_path, to, capsys):
    a_store(tmp_path / "s", {"x": 7}, layer_ids=(2, 3, 5))
    assert main(["export", str(tmp_path / "s"), "--to", to, "--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert f"{to}'s trainer needs layer id 6" in message
    assert "extractor extract ... --layers 2,3,5 --last" in message
    assert not (tmp_path / "out").exists()


def test_a_second_run_goes_on_where_the_first_stopped(tmp_path, store, monkeypatch):
    out = tmp_path / "out"
    original = folder_module.write
    written = []

    def stop_after_one(form, record, folder, file, ledger):
        if written:
            raise KeyboardInterrupt
        written.append(folder / file)
        return original(form, record, folder, file, ledger)

    monkeypatch.setattr(folder_module, "write", stop_after_one)
    with pytest.raises(KeyboardInterrupt):
        export_store(store.path, "modelopt", out)
    monkeypatch.undo()
    before = written[0].stat().st_mtime_ns
    summary = export_store(store.path, "modelopt", out)
    assert (summary.written, summary.kept) == (2, 1)
    assert written[0].stat().st_mtime_ns == before
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert [(line["sample_id"], line["num_tokens"]) for line in lines] == [(name, LENGTHS[name]) for name in store]
    assert sorted(path.name for path in out.glob("*.pt")) == sorted(line["file"] for line in lines)
    assert not list(out.glob(".*"))


def test_foreign_folders_are_refused(tmp_path, store, model):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match="holds something else"):
        export_store(store.path, "modelopt", tmp_path / "used")
    export_store(store.path, "modelopt", tmp_path / "out")
    with pytest.raises(StoreError, match="another export .*format: there 'modelopt', now 'specforge'"):
        export_store(store.path, "specforge", tmp_path / "out", ExportOptions(model=model))
    with pytest.raises(StoreError, match="dtype: there 'bfloat16', now 'float32'"):
        export_store(store.path, "modelopt", tmp_path / "out", ExportOptions(dtype="float32"))


def test_other_refusals(tmp_path, store, monkeypatch):
    with pytest.raises(UsageError, match="no export format 'gguf'; speculators, specforge"):
        export_store(store.path, "gguf", tmp_path / "out")
    with pytest.raises(UsageError, match="dtype 'int8' can't be written"):
        export_store(store.path, "modelopt", tmp_path / "out", ExportOptions(dtype="int8"))
    with pytest.raises(UsageError, match="after the target's final norm.*--model"):
        export_store(store.path, "specforge", tmp_path / "out")
    with pytest.raises(StoreError, match="holds no sealed sample"):
        export_store(a_store(tmp_path / "empty", {}).path, "modelopt", tmp_path / "out")
    monkeypatch.setattr("extractor.disk.free_bytes", lambda path: 100)
    with pytest.raises(DiskFullError, match="needs 3,456 bytes"):
        export_store(store.path, "modelopt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_sample_ends_the_export_and_is_named(tmp_path):
    store = a_store(tmp_path / "s", LENGTHS)
    damage(store, "b/ü")
    with pytest.raises(CorruptError, match="sample 'b/ü'.*verify .* --repair"):
        export_store(store.path, "modelopt", tmp_path / "out")
    assert not (tmp_path / "out" / f"{file_stem('b/ü')}.pt").exists()


def test_the_backend_refuses_what_it_cannot_read(tmp_path, store):
    pytest.importorskip("hs_connectors", reason=HINT)
    datasets = pytest.importorskip("datasets")
    from extractor.exports.speculators_backend import StoreTransfer

    datasets.Dataset.from_dict({"input_ids": [[1]]}).save_to_disk(tmp_path / "foreign")
    with pytest.raises(UsageError, match="no column sample_id.*--index-only"):
        StoreTransfer(store.path, tmp_path / "foreign")
    export_store(store.path, "speculators", tmp_path / "index", ExportOptions(index_only=True))
    short = a_store(tmp_path / "three", {"a": 5}, layer_ids=(2, 3, 5))
    with pytest.raises(StoreError, match="needs layer id 6"):
        StoreTransfer(short.path, tmp_path / "index")
    partial = StoreTransfer(a_store(tmp_path / "partial", {"a": 5}).path, tmp_path / "index")
    found = {name: partial.get_cached(number) is not None for number, name in enumerate(store)}
    assert found == {"a": True, "b/ü": False, "c": False}
    with pytest.raises(StoreError, match="extractor extract"):
        partial.get_generated({})


@pytest.mark.parametrize(("family", "offset"), [("llama", 0.0), ("gemma3_text", 1.0)])
def test_final_norm_against_transformers(tmp_path, family, offset):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        family,
        hidden_size=16,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=9,
    )
    peer = transformers.AutoModelForCausalLM.from_config(config)
    torch.nn.init.uniform_(peer.model.norm.weight)
    peer.save_pretrained(tmp_path)
    states = torch.randn(3, 16) * 40
    torch.testing.assert_close(load_final_norm(tmp_path)(states), peer.model.norm(states), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(rms_norm(states, peer.model.norm.weight + 1 - offset), peer.model.norm(states))


def test_final_norm_of_another_kind_is_refused(tmp_path):
    config = {"model_type": "gpt2", "num_hidden_layers": 6, "hidden_size": 16, "vocab_size": 99}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"ln_f.weight": torch.ones(16)}, tmp_path / "m.safetensors")
    with pytest.raises(InputError, match="rms_norm_eps"):
        load_final_norm(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    with pytest.raises(InputError, match=r"model\.norm\.weight"):
        load_final_norm(tmp_path)


def test_file_names():
    assert file_stem("gsm8k-17_a.b~") == "gsm8k-17_a.b~"
    assert "/" not in file_stem("a/../b")
    long = {file_stem("x" * 500 + tail) for tail in "ab"}
    assert len(long) == 2
    assert all(len(name) <= 200 for name in long)


def test_command_prints_one_json_document(tmp_path, store, capsys):
    assert main(["export", str(store.path), "--to", "safetensors", "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == 3
    assert main(["export", str(store.path), "--to", "safetensors", "--out", str(tmp_path / "out")]) == 0
    assert "0 files written (0 bytes), 3 already there" in capsys.readouterr().out
    assert main(["export", str(store.path), "--to", "safetensors", "--out", str(tmp_path / "anew")]) == 0
    assert re.search(r"3 files written \(\d\.\d KiB\)\n", capsys.readouterr().out)
    arguments = ["export", str(store.path), "--to", "modelopt", "--out", str(tmp_path / "x"), "--index-only"]
    assert main(arguments) == 2
    assert "--index-only goes with --to speculators" in capsys.readouterr().err


def test_an_index_says_where_the_states_are_and_how_to_train_from_there(tmp_path, store, capsys):
    pytest.importorskip("datasets")
    out = tmp_path / "my index"
    assert main(["export", str(store.path), "--to", "speculators", "--out", str(out), "--index-only"]) == 0
    said, command = capsys.readouterr().out.splitlines()
    assert (
        said == f"3 samples, 27 tokens: {out} holds the data set without the states, which are read from {store.path}:"
    )
    assert shlex.split(command)[-5:] == ["--hidden-states-path", str(store.path), "--data-path", str(out), "..."]
    assert not (out / "samples.jsonl").exists(), "it would name files that are not there"
    assert main(["export", str(store.path), "--to", "speculators", "--out", str(out)]) == 0
    assert (out / "samples.jsonl").exists()
