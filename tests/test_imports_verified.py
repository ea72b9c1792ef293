"""`verify` of an imported store: its values against the model, and whether the whole folder is there."""

from __future__ import annotations

import json
import shutil

import numba  # noqa: F401 - before the engines, as in test_main_job
import pytest
import torch
from jobs import config, write_random_samples
from models import save_tiny_llama
from safetensors.torch import load_file, save_file

from extractor.cli import main
from extractor.exports import ExportOptions, export_store
from extractor.extraction import extract
from extractor.imports import ImportOptions, import_folder

LENGTHS = [1, 7, 33, 12]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("llama"), max_positions=128)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def store(request, model, tmp_path_factory):
    """Computed in float32 and stored as fp16, or bf16 all through."""
    folder = tmp_path_factory.mktemp("extracted")
    samples = write_random_samples(folder / "samples.parquet", LENGTHS)
    dtype = "float16" if request.param == "float32" else "bfloat16"
    extract(config(model, samples, folder / "store", dtype=dtype, compute_dtype=request.param))
    return folder / "store"


def exported(store, out, form, model):
    if form == "speculators":
        pytest.importorskip("datasets")
    dtype = json.loads((store / "manifest.json").read_text())["dtype"]
    export_store(store, form, out, ExportOptions(dtype=dtype, model=model))


def compared(store, model, capsys):
    code = main(["verify", str(store), "--reference", str(model), "--samples", str(len(LENGTHS)), "--json"])
    return code, json.loads(capsys.readouterr().out)["reference"]


@pytest.mark.parametrize("form", ["speculators", "specforge", "modelopt", "safetensors"])
def test_imported_values_agree_with_the_model(tmp_path, store, model, form, capsys):
    exported(store, tmp_path / "files", form, model)
    import_folder(tmp_path / "files", form, tmp_path / "back", ImportOptions(model=model))
    code, reference = compared(tmp_path / "back", model, capsys)
    assert code == 0, reference
    assert len(reference["samples"]) == len(LENGTHS)
    assert all(layer["elements"] == sum(LENGTHS) * 64 for layer in reference["layers"])


def test_weights_of_another_model_are_seen(tmp_path, store, model, capsys):
    """Of the same shape, so that nothing but the values can tell."""
    exported(store, tmp_path / "files", "safetensors", model)
    import_folder(tmp_path / "files", "safetensors", tmp_path / "back", ImportOptions(model=model))
    shutil.copytree(model, tmp_path / "other")
    (weights,) = (tmp_path / "other").glob("*.safetensors")
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor + torch.randn(tensor.shape, generator=generator).to(tensor.dtype) * tensor.std()
        if tensor.ndim == 2
        else tensor
        for name, tensor in load_file(weights).items()
    }
    save_file(tensors, weights, {"format": "pt"})
    code, reference = compared(tmp_path / "back", tmp_path / "other", capsys)
    assert (code, reference["ok"]) == (1, False)
    assert all(layer["beyond_tolerance"] > layer["elements"] // 2 for layer in reference["layers"])


def test_swapped_layers_are_seen(tmp_path, store, model, capsys):
    """Files of foreign names, imported under other ids than theirs."""
    exported(store, tmp_path / "files", "safetensors", model)
    for name in ("checksums.jsonl", "export.json"):
        (tmp_path / "files" / name).unlink()
    for file in (tmp_path / "files").glob("*.safetensors"):
        save_file(load_file(file), file)
    options = ImportOptions(model=model, layers="1,4,0,6")
    import_folder(tmp_path / "files", "safetensors", tmp_path / "back", options)
    code, reference = compared(tmp_path / "back", model, capsys)
    assert code == 1
    assert [bool(layer["beyond_tolerance"]) for layer in reference["layers"]] == [True, True, False, False]
