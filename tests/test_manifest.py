"""The manifest: what is refused, and with which words."""

from __future__ import annotations

import dataclasses
import json

import pytest
from store_samples import a_manifest, rows_of, write_samples

from extractor.errors import FingerprintError, StoreError
from extractor.manifest import NAME, Manifest
from extractor.store import Store, prepare_store


def change(path, **fields):
    raw = json.loads((path / NAME).read_text())
    raw.update(fields)
    (path / NAME).write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))


@pytest.fixture
def path(tmp_path):
    path = prepare_store(tmp_path / "s", a_manifest()).path
    write_samples(path, {"a": rows_of(0, 2, a_manifest())})  # without a shard the next configuration is taken
    return path


def test_round_trip(path):
    assert Manifest.load(path) == a_manifest()
    assert Manifest.load(path).fingerprint() == a_manifest(created="later", extractor_version="9").fingerprint()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: change(p, format_version=7), "format version 7; this release reads up to 1"),
        (lambda p: change(p, codec=None), "lacks codec"),
        (lambda p: change(p, surprise=1), "unknown surprise"),
        (lambda p: change(p, layer_ids=3), "wrong type"),
        (lambda p: change(p, dtype="float64"), "dtype is 'float64', allowed is float16 or bfloat16"),
        (lambda p: change(p, codec="lz4"), "codec is 'lz4', allowed is none or shuffle-zstd"),
        (lambda p: (p / NAME).write_text("{"), "can't be read as JSON"),
        (lambda p: (p / NAME).write_text("[1]"), "holds a JSON list"),
        (lambda p: (p / NAME).unlink(), "has lost its manifest.json"),
    ],
)
def test_bad_manifests(path, damage, message):
    damage(path)
    with pytest.raises(StoreError, match=message):
        Store.open(path)


def test_a_name_alone_that_differs_is_said_with_what_to_do(path):
    """Imports do not know the weights: there the folder's name tells a model from its fine-tuned sister."""
    named = a_manifest(model_name="other")
    assert named.continuing(path) == named
    with pytest.raises(FingerprintError, match="whose weights are not known here, call its folder tiny"):
        prepare_store(path, named)


def test_no_store_at_all(tmp_path):
    with pytest.raises(StoreError, match="does not exist; make one with"):
        Store.open(tmp_path / "nothing")


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Manifest)])
def test_every_field_that_decides_bytes_is_compared(path, field):
    """A new field is compared unless it is named here."""
    other = a_manifest()
    value = getattr(other, field)
    new = {
        "format_version": 1,
        "dtype": "bfloat16",
        "codec": "shuffle-zstd",
        "layer_ids": (1,),
        "options": {"last": True},
    }
    changed = new.get(field, value + 1 if isinstance(value, int) else f"{value}x")
    other = dataclasses.replace(other, **{field: changed})
    if field in ("created", "extractor_version", "format_version"):
        prepare_store(path, other)
        return
    with pytest.raises(FingerprintError, match=f"{field}.*store .*this run"):
        prepare_store(path, other)
    assert a_manifest().fingerprint() != other.fingerprint()
