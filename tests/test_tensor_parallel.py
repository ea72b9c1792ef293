"""A number of ranks that the model can't be split into is said before an engine is loaded."""

from __future__ import annotations

import json

import pytest
from models import save_tiny_llama

from extractor.cli import main
from extractor.engines.tensor_parallel import require_split, splits
from extractor.errors import UsageError
from extractor.model_info import ModelInfo
from extractor.samples import write_samples


@pytest.mark.parametrize(
    ("heads", "kv_heads", "allowed"),
    [
        (9, 3, [1, 3, 9]),
        (8, 2, [1, 2, 4, 8]),
        (12, 4, [1, 2, 4, 12]),  # 3 and 6 ranks would need parts of a key-value head
        (64, None, [1, 2, 4, 8, 16, 32, 64]),
        (71, 1, [1, 71]),
    ],
)
def test_splits(heads, kv_heads, allowed):
    assert splits(heads, kv_heads) == allowed


def test_a_split_that_is_impossible_is_said_at_once(tmp_path, monkeypatch, capsys):
    model = save_tiny_llama(tmp_path / "model", num_layers=8)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "num_attention_heads": 9, "num_key_value_heads": 3}))
    write_samples(tmp_path / "s.parquet", [{"sample_id": "a", "input_ids": [1, 2]}])
    capsys.readouterr()
    monkeypatch.setattr("extractor.extraction.engine_class", lambda name: pytest.fail("an engine was loaded"))
    arguments = ["extract", str(tmp_path / "s.parquet"), "--model", str(model), "--out", str(tmp_path / "store")]
    assert main([*arguments, "--engine", "vllm", "--tp", "2"]) == 2
    assert capsys.readouterr().err == (
        "extractor extract: --tp 2 can't split model, which has 9 attention heads and 3 key-value heads; allowed are "
        "1, 3, 9; pass one of them, or a part of the GPUs to each of several --replicas\n"
    )
    assert not (tmp_path / "store").exists()


def test_what_the_config_does_not_say_is_left_to_the_engine(tmp_path):
    config = {"num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 9, "num_attention_heads": [2, 4]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    require_split(ModelInfo.from_dir(tmp_path), 7)
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_attention_heads": 4}))
    require_split(ModelInfo.from_dir(tmp_path), 4)
    with pytest.raises(UsageError, match=r"has 4 attention heads; allowed are 1, 2, 4;"):
        require_split(ModelInfo.from_dir(tmp_path), 3)
