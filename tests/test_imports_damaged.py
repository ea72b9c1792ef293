"""Files whose tensors are not what their format says: listed with the reason, nothing rounded, nothing fatal."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import save_file

from extractor.cli import main
from extractor.errors import InputError
from extractor.imports import ImportOptions, import_folder
from extractor.store import Store

STATES = torch.zeros(3, 16).half()
GOOD = {
    "input_ids": torch.arange(3),
    "loss_mask": torch.tensor([0.0, 1.0, 1.0]),
    "hidden_states": STATES,
    "aux_hidden_states": STATES.repeat(1, 3),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    config = {"model_type": "llama", "num_hidden_layers": 6, "hidden_size": 16, "vocab_size": 99}
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"input_ids": [0, 1, 2]}, "input_ids is list; tensors are expected"),
        ({"input_ids": torch.tensor([0, 1.5, 2])}, "token id 1.5; whole numbers"),
        ({"input_ids": torch.tensor([0, float("nan"), 2])}, "token id nan"),
        ({"input_ids": torch.tensor([0, 2**40, 2])}, f"token id {2**40}; whole numbers from 0 to {2**31 - 1}"),
        ({"input_ids": torch.tensor([0, -1, 2])}, "token id -1"),
        ({"loss_mask": torch.tensor([0, 1, 257])}, "loss mask 257; whole numbers from 0 to 1"),
        ({"hidden_states": torch.tensor(1.0)}, "states of shape []"),
        ({"hidden_states": STATES[:, :0]}, "states of shape [3, 0]"),
        ({"aux_hidden_states": STATES[None]}, "states of shape [1, 3, 16]"),
        (
            {"hidden_states": STATES.long(), "aux_hidden_states": STATES.repeat(1, 3).long()},
            "states of int64; one of bfloat16, float16, float32 is expected",
        ),
        (
            {"aux_hidden_states": STATES.repeat(1, 3).float(), "hidden_states_prenorm": True},
            "states of float16, float32",
        ),
        (
            {"aux_hidden_states": STATES.repeat(1, 3).to("meta")},
            "states are a torch.strided tensor of torch.float16 on",
        ),
        ({"aux_hidden_states": STATES.repeat(2, 3)}, "states of shapes [(6, 16)]; (3, 16) is expected"),
        ({"input_ids": torch.arange(3).to_sparse()}, "token ids are a torch.sparse_coo tensor"),
        ({"input_ids": torch.arange(3) + 0j}, "token ids torch.complex64 of shape [3]; whole numbers [T]"),
        ({"input_ids": torch.arange(3).to("meta")}, "token ids are a torch.strided tensor of torch.int64 on meta"),
        ({"loss_mask": "abc"}, "can't be taken (TypeError"),
        ({"loss_mask": torch.ones(2)}, "3 tokens and a loss mask of 2"),
        ({"conversation_id": "a\ud800"}, "sample id 'a\\ud800' is no valid Unicode"),
    ],
)
def test_a_file_of_other_values_is_listed(tmp_path, model, changes, reason):
    (tmp_path / "files").mkdir()
    torch.save(GOOD, tmp_path / "files" / "a.pt")
    torch.save({**GOOD, **changes}, tmp_path / "files" / "b.pt")
    options = ImportOptions(model=model, layers="1,2,3")
    summary = import_folder(tmp_path / "files", "modelopt", tmp_path / "back", options)
    assert (summary.samples, summary.rejected) == (1, 1)
    assert reason in json.loads((tmp_path / "back" / "import-rejects.jsonl").read_text())["reason"]
    torch.save(GOOD | {"conversation_id": "b"}, tmp_path / "files" / "b.pt")
    assert import_folder(tmp_path / "files", "modelopt", tmp_path / "back", options).rejected == 0
    assert not (tmp_path / "back" / "import-rejects.jsonl").exists(), "the list of the run before"


@pytest.mark.parametrize(
    "first", [{"hidden_states": STATES.long()}, {"loss_mask": "abc"}, {"aux_hidden_states": STATES[:2].repeat(1, 3)}]
)
def test_the_first_file_decides_nothing_when_it_is_bad(tmp_path, model, first):
    (tmp_path / "files").mkdir()
    torch.save({**GOOD, **first, "hidden_states_prenorm": True}, tmp_path / "files" / "a.pt")
    torch.save(GOOD, tmp_path / "files" / "b.pt")
    summary = import_folder(
        tmp_path / "files", "modelopt", tmp_path / "back", ImportOptions(model=model, layers="1,2,3")
    )
    assert (summary.samples, summary.rejected, summary.dtype) == (1, 1, "float16")


def test_states_of_any_strides_are_stored_as_they_are(tmp_path, model):
    """Columns first, expanded, and still part of a graph."""
    (tmp_path / "files").mkdir()
    states = torch.arange(48.0).view(16, 3).half().t()
    record = {
        "input_ids": torch.tensor([7]).expand(3),
        "loss_mask": torch.ones(3, requires_grad=True),
        "hidden_states": torch.nn.Parameter(states),
        "aux_hidden_states": torch.arange(144.0).view(48, 3).half().t(),
        "hidden_states_prenorm": True,
    }
    torch.save(record, tmp_path / "files" / "x.pt")
    summary = import_folder(
        tmp_path / "files", "modelopt", tmp_path / "back", ImportOptions(model=model, layers="1,2,3")
    )
    assert (summary.samples, summary.rejected, summary.layer_ids) == (1, 0, [1, 2, 3, 6])
    sample = Store.open(tmp_path / "back", check=True)["x"]
    expected = torch.stack([*record["aux_hidden_states"].split(16, 1), states], 1)
    assert sample.hidden_states.tolist() == expected.tolist()
    assert sample.token_ids.tolist() == [7, 7, 7]
    assert sample.loss_mask.tolist() == [1, 1, 1]


def test_a_file_whose_name_is_no_unicode_is_listed(tmp_path, model):
    (tmp_path / "files").mkdir()
    torch.save(GOOD, tmp_path / "files" / "a.pt")
    shutil.copy(tmp_path / "files" / "a.pt", os.fsencode(tmp_path / "files") + b"/b\xff.pt")
    summary = import_folder(
        tmp_path / "files", "modelopt", tmp_path / "back", ImportOptions(model=model, layers="1,2,3")
    )
    assert (summary.samples, summary.rejected) == (1, 1)


def test_plain_states_of_two_dimensions_are_refused(tmp_path, model):
    (tmp_path / "files").mkdir()
    tensors = {"input_ids": torch.arange(3), "loss_mask": torch.ones(3), "hidden_states": STATES}
    save_file(tensors, tmp_path / "files" / "x.safetensors")
    with pytest.raises(InputError, match=r"states of shape \[3, 16\]; 3 dimensions"):
        import_folder(tmp_path / "files", "safetensors", tmp_path / "back", ImportOptions(model=model))


def test_a_data_set_of_other_columns(tmp_path, model):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"input_ids": [[1]]}).save_to_disk(tmp_path / "files")
    with pytest.raises(InputError, match="has no column loss_mask"):
        import_folder(tmp_path / "files", "speculators", tmp_path / "back", ImportOptions(model=model))


@pytest.mark.parametrize("form", ["speculators", "specforge", "modelopt", "safetensors"])
def test_a_folder_that_is_not_there(tmp_path, model, form, capsys):
    arguments = ["import", str(tmp_path / "nope"), "--from", form, "--model", str(model)]
    assert main([*arguments, "--out", str(tmp_path / "back")]) == 1
    assert f"{tmp_path / 'nope'} is no folder" in capsys.readouterr().err
