"""What a foreign file must hold before anything of it is stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from extractor.imports.format import BadRecordError, Foreign, Source, check_integers
from extractor.manifest import Manifest

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Sound:
    """A sample that can be stored as it is. token_ids int32 [T]; loss_mask uint8 [T]; slots L contiguous tensors [T, H]
    of one dtype, the aux states and then, with has_last, the last one; layer_ids as in Foreign; file_bytes_per_token:
    of all its file's states, those left out as well."""

    sample_id: str
    token_ids: np.ndarray
    loss_mask: np.ndarray
    slots: list[torch.Tensor]
    has_last: bool
    layer_ids: tuple[int, ...] | None
    file_bytes_per_token: int


def read_sound(source: Source, listed_id: str | None, pad_token: int | None) -> Sound:
    """The sample, under the id that its file states, or else `listed_id`, or else its file's name.

    Raises BadRecordError for whatever is wrong with the file: the others are still to be read.
    """
    try:
        return _sound(source.read(), listed_id or source.own_id, pad_token)
    except BadRecordError:
        raise
    except Exception as error:  # noqa: BLE001 - a file from elsewhere can hold anything, and torch raises any kind
        raise BadRecordError(f"can't be taken ({type(error).__name__}: {error})") from error


def require_fit(sample: Sound, manifest: Manifest) -> None:
    """Raises BadRecordError unless the sample has the store's layers and width."""
    if len(sample.slots) != len(manifest.layer_ids):
        raise BadRecordError(f"{len(sample.slots)} states a token; the first file has {len(manifest.layer_ids)}")
    if sample.layer_ids is not None and sample.layer_ids != manifest.layer_ids[: len(sample.layer_ids)]:
        raise BadRecordError(f"layer ids {list(sample.layer_ids)}; this store's are {manifest.layer_ids}")
    width = sample.slots[0].shape[1]
    if width != manifest.hidden_size:
        raise BadRecordError(f"states {width} wide; {manifest.hidden_size} is expected")


def _sound(sample: Foreign, other_id: str, pad_token: int | None) -> Sound:
    sample_id = other_id if sample.sample_id is None else sample.sample_id
    _check_id(sample_id)
    _check_integers("token ids", "token id", sample.token_ids, np.iinfo(np.int32).max)
    _check_integers("loss mask", "loss mask", sample.loss_mask, 1)
    if len(sample.token_ids) != len(sample.loss_mask):
        raise BadRecordError(f"{len(sample.token_ids)} tokens and a loss mask of {len(sample.loss_mask)}")
    slots = sample.aux if sample.last is None else [*sample.aux, sample.last]
    _check_states(slots, len(sample.token_ids))
    end = _end(sample, pad_token)
    if end == 0:
        raise BadRecordError("0 tokens; at least one is expected")
    return Sound(
        sample_id=sample_id,
        token_ids=sample.token_ids[:end].detach().numpy().astype(np.int32),
        loss_mask=sample.loss_mask[:end].detach().numpy().astype(np.uint8),
        slots=[slot[:end].detach().contiguous() for slot in slots],
        has_last=sample.last is not None,
        layer_ids=sample.layer_ids,
        file_bytes_per_token=(len(slots) + sample.left_out) * slots[0].shape[1] * slots[0].itemsize,
    )


def _check_id(sample_id: object) -> None:
    if not isinstance(sample_id, str):
        raise BadRecordError(f"sample id {sample_id!r}; text is expected")
    try:
        sample_id.encode()
    except UnicodeEncodeError:
        raise BadRecordError(f"sample id {sample_id!r} is no valid Unicode; rename it") from None


def _check_integers(name: str, one: str, values: torch.Tensor, most: int) -> None:
    _require_dense(name, values)
    if values.ndim != 1 or values.dtype.is_complex:
        raise BadRecordError(f"{name} {values.dtype} of shape {list(values.shape)}; whole numbers [T] are expected")
    check_integers(one, values, most)


def _check_states(slots: list[torch.Tensor], tokens: int) -> None:
    if not slots:
        raise BadRecordError("no states; at least one a token is expected")
    for slot in slots:
        _require_dense("states", slot)
    dtypes = {slot.dtype for slot in slots}
    if len(dtypes) != 1 or not dtypes <= set(_FLOATS):
        raise BadRecordError(f"states of {_names(dtypes)}; one of {_names(_FLOATS)} is expected")
    shapes = {tuple(slot.shape) for slot in slots}
    expected = (tokens, slots[0].shape[-1] if slots[0].ndim else 0)
    if shapes != {expected}:
        raise BadRecordError(f"states of shapes {sorted(shapes)}; {expected} is expected")


def _require_dense(name: str, values: torch.Tensor) -> None:
    if values.layout != torch.strided or values.device.type != "cpu" or values.is_quantized:
        raise BadRecordError(
            f"{name} are a {values.layout} tensor of {values.dtype} on {values.device}; a dense one in main memory is "
            "expected"
        )


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))


def _end(sample: Foreign, pad_token: int | None) -> int:
    """Tokens up to the padding: the last `pad_token`s under a zero mask."""
    if pad_token is None:
        return len(sample.token_ids)
    real = torch.nonzero((sample.token_ids != pad_token) | (sample.loss_mask != 0))
    return int(real[-1]) + 1 if len(real) else 0
