"""Imports: what our exports and the peers' layouts hold comes back bit for bit; bad files are listed, not fatal."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from store_cases import a_store, content, norm_only_model

from extractor.cli import main
from extractor.errors import FingerprintError, InputError, StoreError, UsageError
from extractor.exports import ExportOptions, export_store
from extractor.imports import ImportOptions, import_folder
from extractor.store import Store
from extractor.store.lock import RunLock

LENGTHS = {"a": 5, "b/ü": 21, "c": 1}
LAYERS = "2,3,5"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return norm_only_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return a_store(tmp_path_factory.mktemp("imports") / "store", LENGTHS)


@pytest.fixture
def options(model):
    return ImportOptions(model=model, layers=LAYERS)


def assert_same(path, store, slots):
    """The imported store holds the first `slots` slots of `store`, bit for bit."""
    imported = Store.open(path, check=True)
    assert len(imported) == len(store)
    for name in store:
        token_ids, mask, rows = content(name, LENGTHS[name], store.manifest)
        sample = imported[name]
        assert sample.token_ids.tolist() == token_ids.tolist()
        assert sample.loss_mask.tolist() == mask.tolist()
        assert np.array_equal(sample.hidden_states.view(np.uint16), rows[:, :slots].view(np.uint16))
        assert sample.stats["max_abs"].tolist() == np.abs(rows[:, :slots]).max((0, 2)).astype(np.float32).tolist()
        assert not sample.stats["nan"].any()


@pytest.mark.parametrize("form", ["speculators", "modelopt"])
def test_formats_with_the_last_state(tmp_path, store, options, form):
    if form == "speculators":
        pytest.importorskip("datasets")
    export_store(store.path, form, tmp_path / "files", ExportOptions(dtype="float16"))
    summary = import_folder(tmp_path / "files", form, tmp_path / "back", options)
    assert (summary.samples, summary.tokens, summary.exit_code) == (3, 27, 0)
    assert summary.layer_ids == [2, 3, 5, 6]
    assert_same(tmp_path / "back", store, 4)
    again = import_folder(tmp_path / "files", form, tmp_path / "back", options)
    assert (again.samples, again.already_stored) == (0, 3)


def test_specforge_leaves_the_normed_last_state_out(tmp_path, store, options, model):
    export_store(store.path, "specforge", tmp_path / "files", ExportOptions(dtype="float16", model=model))
    summary = import_folder(tmp_path / "files", "specforge", tmp_path / "back", options)
    assert summary.layer_ids == [2, 3, 5]
    assert "after the final norm" in summary.note
    assert_same(tmp_path / "back", store, 3)


@pytest.mark.parametrize("form", ["speculators", "specforge", "modelopt", "safetensors"])
def test_samples_keep_their_ids_where_only_the_list_knows_them(tmp_path, store, model, options, form):
    """Files without an id of their own, as the peers write them, beside the export's samples.jsonl."""
    files = tmp_path / "files"
    export_store(store.path, form, files, ExportOptions(dtype="float16", model=model))
    if form == "speculators":
        datasets = pytest.importorskip("datasets")
        rows = datasets.load_from_disk(files).remove_columns("sample_id").map(lambda row: row)
        rows.save_to_disk(tmp_path / "rows")
        for file in (tmp_path / "rows").iterdir():
            shutil.copy(file, files)
    for file in files.glob("*.pt"):
        record = torch.load(file, weights_only=True)
        torch.save({key: value for key, value in record.items() if key != "conversation_id"}, file)
    for file in files.glob("*.safetensors"):
        save_file(load_file(file), file, {"layer_ids": "2,3,5,6", "layer_convention": store.manifest.layer_convention})
    (files / "checksums.jsonl").unlink()  # they were changed
    options = ImportOptions(model=model) if form == "safetensors" else options
    assert import_folder(files, form, tmp_path / "back", options).rejected == 0
    assert list(Store.open(tmp_path / "back")) == list(store)
    (files / "samples.jsonl").unlink()
    import_folder(files, form, tmp_path / "named", options)
    by_file = {"speculators": "row-1", "specforge": "rows_0-2000/data_1"}.get(form, "b%2F%C3%BC")
    assert by_file in Store.open(tmp_path / "named")


def test_a_list_that_is_damaged_or_of_another_kind(tmp_path, store, options, model):
    files = tmp_path / "files"
    export_store(store.path, "specforge", files, ExportOptions(dtype="float16", model=model))
    lines = (files / "samples.jsonl").read_text().splitlines(keepends=True)
    (files / "samples.jsonl").write_text(lines[0] + lines[1][:20])
    with pytest.raises(InputError, match=r"line 2 of .*samples.jsonl is damaged.*run the export again"):
        import_folder(files, "specforge", tmp_path / "back", options)
    assert not (tmp_path / "back").exists()
    (files / "samples.jsonl").write_text('{"text": "another tool\'s samples"}\n')
    import_folder(files, "specforge", tmp_path / "back", options)
    assert "rows_0-2000/data_0" in Store.open(tmp_path / "back")


def test_room_is_looked_for_before_anything_is_written(tmp_path, model, monkeypatch, capsys):
    """Of 4 files of 1,000 tokens, 3 used states of 4: a store of 4,000 rows of 96 bytes and not much more."""
    files = tmp_path / "files"
    for number in range(4):
        specforge_file(files / f"{number}.ckpt", [1] * 1000, [1] * 1000, torch.zeros(1000, 3, 16).half(), torch.half)
    arguments = ["import", str(files), "--from", "specforge", "--model", str(model), "--layers", LAYERS]
    arguments += ["--out", str(tmp_path / "back")]
    free = {"bytes": 100}
    monkeypatch.setattr("extractor.disk.free_bytes", lambda _: free["bytes"])
    assert main(arguments) == 1
    said = re.search(r"needs ([\d,]+) bytes .* has 100 bytes free .* make room", capsys.readouterr().err)
    need = int(said[1].replace(",", ""))
    assert 4000 * 96 < need < 4000 * 96 * 1.4  # ids and mask are 16 bytes a token, beside 128 of states
    assert not (tmp_path / "back").exists()
    (files / "3.ckpt").rename(tmp_path / "later")
    free["bytes"] = need - 1
    assert main(arguments) == 0
    used = sum(file.stat().st_size for file in (tmp_path / "back").glob("shard-*/data.mdb"))
    assert used <= need
    free["bytes"] = need // 3  # what is stored already needs no room again
    assert main(arguments) == 0
    free["bytes"] = 0
    assert main([*arguments[:-1], str(tmp_path / "forced"), "--force"]) == 0
    assert len(Store.open(tmp_path / "forced")) == 3


def test_modelopt_files_of_normed_states_lose_the_last_slot(tmp_path, options):
    """As its Hugging Face dump writes them: no flag, no mask."""
    (tmp_path / "files").mkdir()
    rows = torch.randn(4, 3, 16).bfloat16()
    record = {"input_ids": torch.arange(4), "hidden_states": torch.ones(4, 16).bfloat16()}
    torch.save({**record, "aux_hidden_states": rows.flatten(1)}, tmp_path / "files" / "conversation.pt")
    import_folder(tmp_path / "files", "modelopt", tmp_path / "back", options)
    sample = Store.open(tmp_path / "back")["conversation"]
    assert sample.loss_mask.tolist() == [1] * 4
    assert np.array_equal(sample.hidden_states.view(np.uint16), rows.view(torch.uint16).numpy())


@pytest.mark.parametrize("layers", [None, "2,3,5,6"])
def test_plain_files(tmp_path, store, model, layers):
    export_store(store.path, "safetensors", tmp_path / "files")
    import_folder(tmp_path / "files", "safetensors", tmp_path / "back", ImportOptions(model=model, layers=layers))
    assert_same(tmp_path / "back", store, 4)


@pytest.mark.parametrize("form", ["safetensors", "speculators", "modelopt", "specforge"])
def test_exports_say_which_layers_they_hold(tmp_path, model, form):
    """Ids other than the default, in another order than trainers want."""
    if form == "speculators":
        pytest.importorskip("datasets")
    store = a_store(tmp_path / "store", LENGTHS, layer_ids=(4, 1, 5, 6))
    export_store(store.path, form, tmp_path / "files", ExportOptions(dtype="float16", model=model))
    summary = import_folder(tmp_path / "files", form, tmp_path / "back", ImportOptions(model=model))
    expected = {"safetensors": [4, 1, 5, 6], "specforge": [1, 4, 5]}.get(form, [1, 4, 5, 6])
    assert summary.layer_ids == expected
    imported = Store.open(tmp_path / "back")
    rows = content("a", LENGTHS["a"], store.manifest)[2]
    sample = imported["a"]
    assert np.array_equal(sample.hidden_states, rows[:, [(4, 1, 5, 6).index(k) for k in expected]])
    with pytest.raises(UsageError, match=r"--layers 2,3,5 names .* the files say that they hold"):
        import_folder(tmp_path / "files", form, tmp_path / "other", ImportOptions(model=model, layers="2,3,5"))


def test_a_plain_file_of_other_layers_is_rejected(tmp_path, model):
    for name, ids in (("a", (4, 1, 5, 6)), ("c", (1, 4, 5, 6))):
        store = a_store(tmp_path / name, {name: LENGTHS[name]}, layer_ids=ids)
        export_store(store.path, "safetensors", tmp_path / f"files-{name}")
    (tmp_path / "files-c" / "c.safetensors").rename(tmp_path / "files-a" / "c.safetensors")
    summary = import_folder(tmp_path / "files-a", "safetensors", tmp_path / "back", ImportOptions(model=model))
    assert (summary.samples, summary.rejected) == (1, 1)
    assert "layer ids [1, 4, 5, 6]" in (tmp_path / "back" / "import-rejects.jsonl").read_text()
    (tmp_path / "files-a" / "c.safetensors").unlink()
    assert (
        import_folder(tmp_path / "files-a", "safetensors", tmp_path / "more", ImportOptions(model=model)).samples == 1
    )


def test_foreign_plain_files_need_names_for_their_layers(tmp_path, model):
    """Layer ids in a header count as ours only beside our convention."""
    (tmp_path / "files").mkdir()
    tensors = {"input_ids": torch.arange(3), "loss_mask": torch.ones(3), "hidden_states": torch.zeros(3, 2, 16).half()}
    save_file(tensors, tmp_path / "files" / "x.safetensors", {"layer_ids": "1,4"})
    with pytest.raises(UsageError, match="the files hold 2 states a token, --layers 2,3,5 names 3"):
        import_folder(tmp_path / "files", "safetensors", tmp_path / "back", ImportOptions(model=model, layers="2,3,5"))
    summary = import_folder(
        tmp_path / "files", "safetensors", tmp_path / "back", ImportOptions(model=model, layers="2,5")
    )
    assert summary.layer_ids == [2, 5]


def specforge_file(path, tokens, mask, aux, dtype=torch.float32):
    path.parent.mkdir(exist_ok=True)
    states = {"hidden_state": torch.zeros(1, len(tokens), 16, dtype=dtype), "aux_hidden_state": aux.flatten(1)[None]}
    torch.save({"input_ids": torch.tensor(tokens), "loss_mask": torch.tensor(mask), **states}, path)


def test_padding_is_cut_where_asked(tmp_path, model):
    """SpecForge stores the batch's padding: id 0 at the end, untrained. A 0 inside, or trained on, stays."""
    rows = torch.randn(6, 3, 16).half()
    specforge_file(tmp_path / "files" / "data_0.ckpt", [0, 7, 0, 8, 0, 0], [0, 1, 0, 1, 0, 0], rows)
    specforge_file(tmp_path / "files" / "data_1.ckpt", [5, 6, 7, 8, 9, 0], [0, 1, 0, 1, 0, 1], rows)
    for pad, expected in ((None, [6, 6]), (0, [4, 6])):
        options = ImportOptions(model=model, layers=LAYERS, pad_token=pad)
        import_folder(tmp_path / "files", "specforge", tmp_path / f"back-{pad}", options)
        back = Store.open(tmp_path / f"back-{pad}", check=True)
        assert [len(back[f"data_{n}"]) for n in (0, 1)] == expected
        assert np.array_equal(back["data_0"].hidden_states, rows[: expected[0]].numpy())


def test_values_beyond_the_range_are_counted(tmp_path, model, capsys):
    rows = torch.randn(2, 3, 16)
    rows[0, 1, 3], rows[1, 2, 0], rows[1, 2, 1] = 1e6, float("nan"), float("inf")
    specforge_file(tmp_path / "files" / "x.ckpt", [1, 2], [1, 1], rows)
    arguments = ["import", str(tmp_path / "files"), "--from", "specforge", "--model", str(model), "--layers", LAYERS]
    assert main([*arguments, "--out", str(tmp_path / "back")]) == 2
    assert "the files hold torch.float32, a store float16 or bfloat16" in capsys.readouterr().err
    assert main([*arguments, "--out", str(tmp_path / "back"), "--dtype", "float16", "--json"]) == 3
    summary = json.loads(capsys.readouterr().out)
    assert [summary[key] for key in ("saturated", "inf", "nan")] == [1, 1, 1]
    stats = Store.open(tmp_path / "back")["x"].stats
    assert [stats[key].tolist() for key in ("saturated", "inf", "nan")] == [[0, 1, 0], [0, 0, 1], [0, 0, 1]]
    assert stats["max_abs"][1] == 1e6


def test_bad_files_are_listed_and_the_rest_is_taken(tmp_path, model, options, capsys):
    files = tmp_path / "files"
    rows = torch.randn(3, 3, 16).half()
    specforge_file(files / "good.ckpt", [1, 2, 3], [1, 1, 1], rows)
    specforge_file(files / "mask.ckpt", [1, 2, 3], [1], rows)
    specforge_file(files / "narrow.ckpt", [1, 2, 3], [1, 1, 1], rows[:, :2])
    specforge_file(files / "rows.ckpt", [1, 2, 3, 4], [1, 1, 1, 1], rows)
    specforge_file(files / "empty.ckpt", [], [], rows[:0])
    (files / "cut.ckpt").write_bytes((files / "good.ckpt").read_bytes()[:700])
    torch.save({"input_ids": torch.tensor([1])}, files / "keys.ckpt")
    arguments = ["import", str(files), "--from", "specforge", "--model", str(model), "--layers", LAYERS]
    assert main([*arguments, "--out", str(tmp_path / "back")]) == 3
    assert "6 files were rejected" in capsys.readouterr().err
    assert list(Store.open(tmp_path / "back")) == ["good"]
    lines = (tmp_path / "back" / "import-rejects.jsonl").read_text().splitlines()
    reasons = {line["file"]: line["reason"] for line in map(json.loads, lines)}
    assert "3 tokens and a loss mask of 1" in reasons["mask.ckpt"]
    assert "2 states a token" in reasons["narrow.ckpt"]
    assert "(4, 16) is expected" in reasons["rows.ckpt"]
    assert "0 tokens" in reasons["empty.ckpt"]
    assert "can't be loaded" in reasons["cut.ckpt"]
    assert "has no loss_mask, hidden_state, aux_hidden_state; found input_ids" in reasons["keys.ckpt"]


def test_speculators_rows_without_or_with_other_states_are_listed(tmp_path, store, options):
    datasets = pytest.importorskip("datasets")
    export_store(store.path, "speculators", tmp_path / "files")
    (tmp_path / "files" / "checksums.jsonl").unlink()
    states = tmp_path / "files" / "hidden_states"
    (states / "hs_0.safetensors").unlink()
    (states / "hs_1.safetensors").write_bytes((states / "hs_2.safetensors").read_bytes())
    summary = import_folder(tmp_path / "files", "speculators", tmp_path / "back", options)
    assert (summary.samples, summary.rejected) == (1, 2)
    reasons = (tmp_path / "back" / "import-rejects.jsonl").read_text()
    assert "can't be loaded" in reasons
    assert "token_ids are not those of its row" in reasons
    datasets.Dataset.from_dict({"x": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(InputError, match="not a data set of speculators"):
        import_folder(tmp_path, "speculators", tmp_path / "none", options)


def test_ids_that_stand_twice_are_refused_once(tmp_path, options):
    (tmp_path / "files").mkdir()
    for name in ("a", "b"):
        record = {"input_ids": torch.arange(2), "hidden_states": torch.zeros(2, 16).half(), "conversation_id": "same"}
        torch.save({**record, "aux_hidden_states": torch.zeros(2, 48).half()}, tmp_path / "files" / f"{name}.pt")
    summary = import_folder(tmp_path / "files", "modelopt", tmp_path / "back", options)
    assert (summary.samples, summary.rejected) == (1, 1)


def test_whole_imports_that_cannot_be(tmp_path, model, options):
    files = tmp_path / "files"
    with pytest.raises(UsageError, match="no import format 'gguf'"):
        import_folder(files, "gguf", tmp_path / "back", options)
    files.mkdir()
    with pytest.raises(InputError, match="holds no files of specforge"):
        import_folder(files, "specforge", tmp_path / "back", options)
    (files / "a.ckpt").write_bytes(b"x")
    with pytest.raises(InputError, match=r"none of the 1 files .* a.ckpt: can't be loaded"):
        import_folder(files, "specforge", tmp_path / "back", options)
    specforge_file(files / "a.ckpt", [1], [1], torch.zeros(1, 3, 16).half())
    with pytest.raises(UsageError, match="3 states a token, --layers 2,3 names 2"):
        import_folder(files, "specforge", tmp_path / "back", ImportOptions(model=model, layers="2,3"))
    wide = tmp_path / "wide"
    wide.mkdir()
    (wide / "config.json").write_text(
        (model / "config.json").read_text().replace('"hidden_size": 16', '"hidden_size": 32')
    )
    with pytest.raises(InputError, match="16 wide, wide has 32"):
        import_folder(files, "specforge", tmp_path / "back", ImportOptions(model=wide, layers=LAYERS))
    assert not (tmp_path / "back").exists()
    import_folder(files, "specforge", tmp_path / "back", options)
    with pytest.raises(FingerprintError, match="layer_ids"):
        import_folder(files, "specforge", tmp_path / "back", ImportOptions(model=model, layers="1,3,5"))


def test_an_import_waits_for_what_changes_the_store(tmp_path, store, model):
    """A compact that removes shards rewrites the list of them, and would lose the import's."""
    export_store(store.path, "safetensors", tmp_path / "files")
    arguments = tmp_path / "files", "safetensors", tmp_path / "back", ImportOptions(model=model)
    import_folder(*arguments)
    with RunLock(tmp_path / "back", shared=False), pytest.raises(StoreError, match="in use by process"):
        import_folder(*arguments)
    assert import_folder(*arguments).already_stored == len(store)
