"""Ids of runs -> one sample with mask and segments, checked against its text, and capped."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from extractor.prepare.conversation import TokenRecord
from extractor.prepare.idrecords import IdReader, Segment
from extractor.prepare.reject import Reject
from extractor.prepare.tokens import Encoded, Tokenizer
from extractor.prepare.turns import Rendered, Run


@dataclass(slots=True)
class Assembled:
    """`token_ids` [T] int32; `loss_mask` [T] uint8; `segments` cover all T positions in order."""

    token_ids: np.ndarray
    loss_mask: np.ndarray
    segments: list[Segment]
    turn: int = 0
    truncated: bool = False


class Assembler:
    """Builds samples; `train_on` names the parts whose positions get mask 1."""

    def __init__(
        self, tokenizer: Tokenizer, reader: IdReader, turn_tokens: Collection[str], train_on: Collection[str]
    ) -> None:
        self._tokenizer = tokenizer
        self._reader = reader
        self._turn_tokens = turn_tokens
        self._train_on = train_on

    def from_text(self, rendered: Rendered, encoded: Sequence[Encoded]) -> Assembled:
        """Raises Reject when the ids are not exactly the text."""
        ids = np.array([token for run in encoded for token in run.ids], np.int32)
        raw = any(run.by_ids for run in rendered.runs)
        self._check_exact(ids, rendered.text, self._tokenizer.special if raw else self._turn_tokens)
        return self._masked(ids, list(self._segments(ids, rendered.runs, encoded)), rendered.turn)

    def from_ids(self, record: TokenRecord) -> Assembled:
        """Given ids are the truth: they are checked, never changed. Raises Reject."""
        self._reader.check(record)
        sample = self._masked(record.token_ids, list(self._reader.segments(record)), 0)
        if record.loss_mask is not None:
            sample.loss_mask &= record.loss_mask
        return sample

    def _masked(self, ids: np.ndarray, segments: list[Segment], turn: int) -> Assembled:
        mask = np.zeros(ids.size, np.uint8)
        for kind, start, end in segments:
            mask[start:end] = kind in self._train_on
        return Assembled(ids, mask, _joined(segments), turn)

    def _segments(self, ids: np.ndarray, runs: Sequence[Run], encoded: Sequence[Encoded]) -> Iterator[Segment]:
        at = 0
        for run, tokens in zip(runs, encoded, strict=True):
            end = at + len(tokens.ids)
            if run.by_ids:
                yield from self._reader.parts(ids, at, end)
            elif run.parts:
                yield from self._run_parts(run, tokens, at)
            else:
                yield "prompt", at, end
            at = end

    def _run_parts(self, run: Run, tokens: Encoded, base: int) -> Iterator[Segment]:
        at = 0
        for part in run.parts:
            end = self._tokenizer.boundary(tokens, run.text, part.end)
            if at < end:
                yield part.kind, base + at, base + end
            at = end

    def _check_exact(self, ids: np.ndarray, text: str, special: Collection[str]) -> None:
        decoded = self._tokenizer.decode(ids.tolist())
        if decoded != text and decoded != self._tokenizer.normalized(text):
            at = next(
                (i for i, (a, b) in enumerate(zip(decoded, text, strict=False)) if a != b), min(len(decoded), len(text))
            )
            raise Reject(
                "not_exact", f"ids decode to {decoded[at : at + 20]!r} where the text has {text[at : at + 20]!r}"
            )
        for token in special:
            wanted = text.count(token)
            got = int(np.count_nonzero(ids == self._tokenizer.special[token]))
            if wanted != got:
                raise Reject("not_exact", f"the text holds {token} {wanted} times, the ids {got} times")


def _joined(segments: list[Segment]) -> list[Segment]:
    """Neighbours of one kind become one segment; empty ones go."""
    joined: list[Segment] = []
    for kind, start, end in segments:
        if joined and joined[-1][0] == kind:
            joined[-1] = (kind, joined[-1][1], end)
        elif start < end:
            joined.append((kind, start, end))
    return joined
