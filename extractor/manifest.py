"""The manifest: what a store holds and which configuration made it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extractor.errors import CorruptError, FingerprintError, StoreError
from extractor.record import FORMAT_VERSION
from extractor.shell import shell_command

NAME = "manifest.json"
REMOVING = f"{NAME}.removing"  # its name once a removal has begun: from then on nothing opens the store any more
Option = str | int | float | bool
_NOT_BYTES = ("created", "extractor_version")  # differ between runs that store the same bytes
_WEIGHTS = "model_weights_hash"  # an option: imports have none
_DTYPES = ("float16", "bfloat16")
_CODECS = ("none", "shuffle-zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Identity of a store. `hidden_size` and `num_layers` are counts; `layer_ids` in the order of a row's L axis;
    `options` are settings that change stored bytes (overflow, compute_dtype, ...)."""

    format_version: int = FORMAT_VERSION
    model_name: str
    model_config_hash: str
    model_dtype: str
    num_layers: int
    layer_ids: tuple[int, ...]
    layer_convention: str
    hidden_size: int
    dtype: str
    codec: str = "none"
    tokenizer_hash: str
    samples_hash: str
    engine: str
    engine_version: str
    extractor_version: str
    created: str
    options: dict[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require(self.dtype in _DTYPES, "dtype", self.dtype, " or ".join(_DTYPES))
        _require(self.codec in _CODECS, "codec", self.codec, " or ".join(_CODECS))
        _require(self.hidden_size > 0, "hidden_size", self.hidden_size, "a positive number")
        _require(len(self.layer_ids) > 0, "layer_ids", self.layer_ids, "at least one layer id")
        _require(isinstance(self.options, dict), "options", self.options, "an object")

    @property
    def row_shape(self) -> tuple[int, int]:
        """(L, H) of one row."""
        return len(self.layer_ids), self.hidden_size

    @property
    def row_bytes(self) -> int:
        return 2 * len(self.layer_ids) * self.hidden_size

    def differences(self, other: Manifest) -> list[tuple[str, Any, Any]]:
        """(field, ours, theirs) for every field that decides stored bytes and differs; options one by one."""
        ours, theirs = self._deciding(), other._deciding()
        names = [*ours, *(name for name in theirs if name not in ours)]
        pairs = ((name, ours.get(name, "unset"), theirs.get(name, "unset")) for name in names)
        return [pair for pair in pairs if pair[1] != pair[2]]

    def continuing(self, store: Path) -> Manifest:
        """This run's manifest, with the model under the name that the store at `store` has for it where their weights
        agree: a folder that was moved or renamed holds the same model. Raises StoreError as `load`."""
        if not (store / NAME).exists() or self.options.get(_WEIGHTS, "none") == "none":
            return self
        stored = Manifest.load(store)
        renamed = dataclasses.replace(self, model_name=stored.model_name)
        return self if stored.differences(renamed) else renamed

    def require_same(self, other: Manifest, where: Path) -> None:
        """Raise FingerprintError naming each field in which the run `other` differs from this stored manifest."""
        found = self.differences(other)
        if not found:
            return
        listed = "; ".join(f"{name}: store {ours!r}, this run {theirs!r}" for name, ours, theirs in found)
        remedy = "use the store's configuration or another --out"
        if [name for name, _, _ in found] == ["model_name"]:
            remedy = f"if it is the same model, whose weights are not known here, call its folder {self.model_name}"
        raise FingerprintError(
            f"{where} was written by another configuration ({listed}); samples of different configurations can't "
            f"share a store; {remedy}"
        )

    def fingerprint(self) -> str:
        """Hash of the fields that decide stored bytes; every shard carries it."""
        return hashlib.sha256(json.dumps(self._deciding(), sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def load(cls, store: Path, name: str = NAME) -> Manifest:
        """Read `store/manifest.json`. Raises StoreError when it is missing, damaged or of a newer format. `name` is
        another one only for a store that is being removed."""
        file = store / name
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise _no_manifest(store) from None
        except OSError as error:
            raise StoreError(f"{file} can't be read: {error}; make it readable, or check the disk (dmesg)") from error
        except ValueError as error:
            raise CorruptError(f"{file} can't be read as JSON: {error}; {_remedy(file.parent)}") from error
        return cls.of_json(raw, file)

    @classmethod
    def of_json(cls, raw: Any, file: Path) -> Manifest:
        """The manifest that was read from `file`. Raises CorruptError, StoreError for one of a newer format."""
        if not isinstance(raw, dict):
            raise CorruptError(f"{file} holds a JSON {type(raw).__name__}, expected an object; {_remedy(file.parent)}")
        version = raw.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise StoreError(
                f"{file} has format version {version}; this release reads up to {FORMAT_VERSION}; update the extractor"
            )
        wanted = [f.name for f in dataclasses.fields(cls)]
        missing = [name for name in wanted if name not in raw]
        unknown = [name for name in raw if name not in wanted]
        if missing or unknown:
            raise CorruptError(
                f"{file} lacks {', '.join(missing) or 'nothing'} and has unknown {', '.join(unknown) or 'nothing'}; "
                f"{_remedy(file.parent)}"
            )
        try:
            return cls(**{**raw, "layer_ids": tuple(raw["layer_ids"])})
        except TypeError as error:
            raise CorruptError(f"{file} has a field of the wrong type ({error}); {_remedy(file.parent)}") from error
        except StoreError as error:
            raise CorruptError(f"{file}: {error}; {_remedy(file.parent)}") from error

    def _deciding(self) -> dict[str, Any]:
        fields = {k: v for k, v in dataclasses.asdict(self).items() if k not in (*_NOT_BYTES, "options")}
        return {**fields, **{f"options.{name}": value for name, value in sorted(self.options.items())}}


def _require(allowed: bool, name: str, got: object, wanted: str) -> None:
    if not allowed:
        raise StoreError(f"manifest field {name} is {got!r}, allowed is {wanted}; correct it")


def _no_manifest(path: Path) -> StoreError:
    if (path / REMOVING).exists():
        again = shell_command("extractor", "remove", path)
        return StoreError(f"{path} is being removed, so it is not a store any more; `{again}` goes on with it")
    if _has_shards(path):
        return CorruptError(f"{path} has lost its {NAME}; {_remedy(path)}")
    return StoreError(_not_a_store(path))


def _has_shards(path: Path) -> bool:
    return any(path.glob("shard-*/data.mdb"))


def _remedy(store: Path) -> str:
    if not _has_shards(store):
        return "restore it from a copy of the store"
    return f"`{shell_command('extractor', 'verify', store, '--repair')}` writes it anew from the copy in a shard"


def _not_a_store(path: Path) -> str:
    if not path.exists():
        return f"store {path} does not exist; make one with `extractor extract`"
    if not path.is_dir():
        return f"{path} is a file, and a store is a folder; pass one that `extractor extract` made"
    return f"{path} has no {NAME}, so it is not a store; pass a folder that `extractor extract` made"
