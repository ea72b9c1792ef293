"""speculators' own trainer on a CPU: the same first losses from our store as from its files, and they fall."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import numpy as np
import pytest
from peers import HINT, ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("speculators", reason=HINT)

from models import VOCAB, save_tiny_llama  # noqa: E402

from extractor import Config, extract  # noqa: E402
from extractor.exports import ExportOptions, export_store  # noqa: E402
from extractor.samples import write_samples  # noqa: E402


def save_tokenizer(folder: Path) -> None:
    """Its trainer looks one up in the target's folder."""
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({f"t{n}": n for n in range(VOCAB)}, unk_token="t0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0", eos_token="t1")
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A store of a random model's states, and its two exports."""
    folder = tmp_path_factory.mktemp("training")
    save_tiny_llama(folder / "model", num_layers=8)
    save_tokenizer(folder / "model")
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 40, 60).tolist() for _ in range(40)]
    rows = [{"sample_id": f"s{n}", "input_ids": tokens, "loss_mask": [1] * 60} for n, tokens in enumerate(ids)]
    write_samples(folder / "samples.parquet", rows)
    config = Config(
        samples=folder / "samples.parquet",
        model=folder / "model",
        out=folder / "store",
        engine="transformers",
        last=True,
    )
    extract(config)
    export_store(folder / "store", "speculators", folder / "files")
    export_store(folder / "store", "speculators", folder / "index", ExportOptions(index_only=True))
    return folder


@pytest.fixture(scope="module", autouse=True)
def on_cpu():
    spec = importlib.util.spec_from_file_location("on_cpu", ROOT / "examples" / "speculators_on_cpu.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    before = torch.accelerator.synchronize
    example.use_cpu()
    yield
    torch.accelerator.synchronize = before


def train(job, caplog, data, epochs, *backend):
    """The loss of every step."""
    from speculators.train.cli import main
    from speculators.train.config import TrainConfig

    caplog.clear()
    caplog.set_level(logging.INFO, "speculators.metrics")
    arguments = {
        "verifier-name-or-path": job / "model",
        "data-path": job / data,
        "save-path": job / f"out-{data}-{epochs}",
        "target-layer-ids": "2 4 5",
        "epochs": epochs,
        "total-seq-len": 256,
        "hidden-states-dtype": "float32",
        "draft-attn-impl": "eager",
        "loss-implementation": "eager",
        "optimizer": "adamw",
        "scheduler-type": "none",
        "lr": 0.003,
        "num-workers": 0,
        "on-missing": "raise",
        "seed": 0,
    }
    flags = [part for name, value in arguments.items() for part in (f"--{name}", *str(value).split())]
    main(TrainConfig.resolve([*flags, *backend]))
    logged = [record.msg for record in caplog.records if record.name == "speculators.metrics"]
    return [step["train"]["loss"] for step in logged if "train" in step]


def test_same_losses_from_the_store_as_from_files_and_they_fall(job, caplog):
    from extractor.exports import speculators_backend  # noqa: F401 - registers the backend

    files = train(job, caplog, "files", 1, "--hidden-states-backend", "file")
    backend = ("--hidden-states-backend", "extractor", "--hidden-states-path", str(job / "store"))
    store = train(job, caplog, "index", 4, *backend)
    assert len(files) > 5
    assert store[: len(files)] == files
    assert np.mean(store[-5:]) < 0.9 * np.mean(store[:5])
