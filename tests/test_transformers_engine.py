"""The reference itself: residual streams by layer id against Hugging Face's own list, and its one difference."""

from __future__ import annotations

import json
import math

import architectures
import numpy as np
import pytest
import torch
from models import VOCAB, save_tiny_llama
from transformers import AutoModel

from extractor.engines.transformers import ResidualReader
from extractor.errors import EngineError, InputError


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def hugging_face(model_dir):
    model = AutoModel.from_pretrained(model_dir, dtype=torch.float32).eval()
    ids = torch.arange(1, 12)[None] % VOCAB
    with torch.inference_mode():
        output = model(input_ids=ids, output_hidden_states=True)
    return model, ids[0].numpy(), [state[0] for state in output.hidden_states]


def test_every_id_below_n_is_hugging_faces(model_dir, hugging_face):
    _, ids, states = hugging_face
    got = ResidualReader(model_dir, "float32").read(ids, [5, 0, 3])
    for layer_id, tensor in zip([5, 0, 3], got, strict=True):
        torch.testing.assert_close(tensor, states[layer_id], rtol=0, atol=0)


def test_last_id_is_before_the_final_norm(model_dir, hugging_face):
    model, ids, states = hugging_face
    (last,) = ResidualReader(model_dir, "float32").read(ids, [6])
    torch.testing.assert_close(model.norm(last), states[6])
    assert not torch.allclose(last, states[6], rtol=0.1)


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        ResidualReader(tmp_path / "none", "float32")
    with pytest.raises(InputError, match=r"no config\.json"):
        ResidualReader(tmp_path, "float32")


def test_a_model_without_its_weights(tmp_path):
    save_tiny_llama(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(EngineError, match="could not load"):
        ResidualReader(tmp_path, "float32")


def test_rows_depend_on_the_whole_prefix(model_dir):
    reader = ResidualReader(model_dir, "float32")
    a = reader.read(np.array([1, 2, 3]), [6])[0]
    b = reader.read(np.array([9, 2, 3]), [6])[0]
    assert not torch.allclose(a[2], b[2], rtol=1e-3)


def test_nemotron_h_heeds_its_time_step_limit_alone(tmp_path):
    """transformers 5.19 clips at `time_step_min`, which is about initial weights, and ignores `time_step_limit`."""
    model = architectures.save("nemotron-h", tmp_path / "model")
    file, ids = model / "config.json", np.arange(1, 40)

    def read(**changed):
        original = file.read_text()
        file.write_text(json.dumps({**json.loads(original), **changed}))
        (stream,) = ResidualReader(model, "float32").read(ids, [6])
        file.write_text(original)
        return stream

    plain = read()
    torch.testing.assert_close(read(time_step_min=0.5), plain, rtol=0, atol=0)
    assert not torch.allclose(read(time_step_limit=[0.5, math.inf]), plain, rtol=0.01)


def test_the_bar_of_weights_is_drawn_on_terminals_only(model_dir, capfd, monkeypatch):
    import sys

    ResidualReader(model_dir, "float32")
    assert "Loading weights" not in capfd.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ResidualReader(model_dir, "float32")
    assert "Loading weights" in capfd.readouterr().err
