"""Files whose tensors are not what their format says: listed with the reason, nothing rounded, nothing fatal."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from extractor.cli import main
from extractor.errors import InputError
from extractor.imports import ImportOptions, import_folder

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
