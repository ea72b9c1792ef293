"""What an importer yields: the samples of a folder in another project's format, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


class BadRecordError(Exception):
    """One file or row that can't be taken; the rest can. The message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A sample as another project stored it. sample_id: None where the file states none. token_ids [T] and
    loss_mask [T] integers; aux A tensors [T, H], in the order of the file; last [T, H] before the final norm, or None
    where the file has none that can be used; left_out: states a token that it holds and nobody can use; layer_ids of
    `aux` in this project's count, where the file states them."""

    sample_id: str | None
    token_ids: torch.Tensor
    loss_mask: torch.Tensor
    aux: list[torch.Tensor]
    last: torch.Tensor | None
    layer_ids: tuple[int, ...] | None = None
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """One sample still on disk. `name` is what rejects call it, `file` its place in the imported folder, `own_id` its
    sample id where neither the file nor a list beside it states one. `read` raises BadRecordError."""

    name: str
    file: Path
    own_id: str
    read: Callable[[], Foreign]


@dataclass(frozen=True, slots=True)
class Importer:
    """find(folder) -> its samples, in a fixed order.  note: what the format can't give, for the summary."""

    name: str
    find: Callable[[Path], list[Source]]
    note: str


def width_of(states: torch.Tensor, dimensions: int) -> int:
    """H of states [..., H]. Raises BadRecordError for another number of dimensions, and for H = 0."""
    if states.ndim != dimensions or not states.shape[-1]:
        raise BadRecordError(f"states of shape {list(states.shape)}; {dimensions} dimensions are expected")
    return int(states.shape[-1])


def split_columns(states: torch.Tensor, width: int) -> list[torch.Tensor]:
    """[T, A * width] -> A views [T, width]."""
    if states.ndim != 2 or states.shape[1] % width:
        raise BadRecordError(f"states of shape {list(states.shape)} are no multiple of {width} columns")
    return list(torch.split(states, width, 1))


def check_integers(name: str, values: torch.Tensor, most: int) -> None:
    """Raises BadRecordError unless all are whole numbers from 0 to `most`: nothing is rounded or wrapped later."""
    bad = values[(values != values.long()) | (values < 0) | (values > most)]
    if len(bad):
        raise BadRecordError(f"{name} {bad[0].item()}; whole numbers from 0 to {most} are expected")


def load_torch(path: Path, *keys: str) -> dict[str, torch.Tensor]:
    """A torch.save file without running code from it. Raises BadRecordError when it is damaged or lacks a key."""
    try:
        found = torch.load(path, weights_only=True)
    except Exception as error:  # noqa: BLE001 - torch raises many kinds for damaged files
        raise BadRecordError(f"can't be loaded ({type(error).__name__}: {str(error).splitlines()[0]})") from error
    _require(set(found) if isinstance(found, dict) else set(), keys)
    other = [f"{key} is {type(found[key]).__name__}" for key in keys if not isinstance(found[key], torch.Tensor)]
    if other:
        raise BadRecordError(f"{', '.join(other)}; tensors are expected")
    loaded: dict[str, torch.Tensor] = found
    return loaded


def load_safetensors(path: Path, *keys: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """(tensors, header text). Raises BadRecordError when the file is damaged or lacks a key."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            _require(set(file.keys()), keys)
            return {key: file.get_tensor(key) for key in keys}, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise BadRecordError(f"can't be loaded ({error})") from error


def _require(found: set[str], keys: tuple[str, ...]) -> None:
    missing = [key for key in keys if key not in found]
    if missing:
        raise BadRecordError(f"has no {', '.join(missing)}; found {', '.join(sorted(map(str, found))) or 'nothing'}")
