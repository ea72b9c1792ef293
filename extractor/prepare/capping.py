"""The length cap, and what is left of a record after it."""

from __future__ import annotations

from extractor.errors import InputError
from extractor.prepare.assemble import Assembled
from extractor.prepare.options import PrepareOptions
from extractor.prepare.reject import Drop
from extractor.sizes import counted


def capped(samples: list[Assembled], options: PrepareOptions, max_length: int | None, where: str) -> list[Assembled]:
    """The samples within `max_length` tokens that have something to train on. Raises Drop when there is none,
    InputError for one that is too long under `--overlong error`."""
    limit = max_length or options.max_length
    fitting = samples if not limit else _fit(samples, limit, options.overlong, where)
    trained = [sample for sample in fitting if sample.loss_mask.any()]
    if trained:
        return trained
    longest = max((sample.token_ids.size for sample in samples), default=0)
    if samples and not fitting:
        raise Drop("too_long", f"{counted(longest, 'token')}, allowed are {limit}")
    raise Drop(
        "no_trained_token",
        f"{counted(longest, 'token')}, none of them trained on" if samples else "no answer to train on",
    )


def _fit(samples: list[Assembled], limit: int, overlong: str, where: str) -> list[Assembled]:
    fitting = []
    for sample in samples:
        length = sample.token_ids.size
        if length > limit and overlong == "error":
            raise InputError(
                f"{where} has {counted(length, 'token')}, over --max-length {limit}; raise it, or pass --overlong "
                "truncate or drop"
            )
        if length <= limit:
            fitting.append(sample)
        elif overlong == "truncate":
            fitting.append(truncate(sample, limit))
    return fitting


def truncate(sample: Assembled, limit: int) -> Assembled:
    """The first `limit` tokens with their mask and segments."""
    segments = [(kind, start, min(end, limit)) for kind, start, end in sample.segments if start < limit]
    return Assembled(sample.token_ids[:limit], sample.loss_mask[:limit], segments, sample.turn, truncated=True)
