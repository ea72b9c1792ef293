"""Which changes of a model folder the hash of its weights sees."""

from __future__ import annotations

import numpy as np
import pytest

from extractor.weights import weights_hash


@pytest.fixture
def model(tmp_path):
    """80 MB in two files, so that blocks of 4 KiB lie about 20 kB apart."""
    rng = np.random.default_rng(0)
    for number in (1, 2):
        (tmp_path / f"model-{number}.safetensors").write_bytes(rng.bytes(40_000_000))
    return tmp_path


@pytest.mark.parametrize("start", [0, 1_234_567, 39_975_000])
def test_a_changed_matrix_is_seen_wherever_it_lies(model, start):
    before = weights_hash(model)
    file = model / "model-2.safetensors"
    data = bytearray(file.read_bytes())
    data[start : start + 25_000] = bytes(25_000)
    file.write_bytes(data)
    assert weights_hash(model) != before


def test_files_and_their_names_count_and_what_is_no_weight_does_not(model):
    before = weights_hash(model)
    (model / "training_args.bin").write_bytes(b"a trainer's")
    assert weights_hash(model) == before
    (model / "model-2.safetensors").rename(model / "model-3.safetensors")
    assert weights_hash(model) != before


def test_no_weights_at_all(tmp_path):
    assert weights_hash(tmp_path) == "none"
