"""Ids whose text nobody renders: checks of given ids, and their parts as the turn tokens tell them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from extractor.prepare.abilities import Abilities
from extractor.prepare.conversation import TokenRecord
from extractor.prepare.reject import Reject
from extractor.prepare.tokens import Tokenizer
from extractor.samples import SEGMENT_KINDS

Segment = tuple[str, int, int]  # kind, start, end: token positions, end exclusive


class IdReader:
    """Reads turns and parts off ids, by the ids of the tokens with which the template opens and closes them."""

    def __init__(self, tokenizer: Tokenizer, abilities: Abilities) -> None:
        self._names = tokenizer.names
        self._closes_questions = abilities.closes_questions
        header = abilities.header.removesuffix(abilities.think_open) if abilities.think_open else abilities.header
        ids = tokenizer.encode([header])[0].ids if header.strip() else []
        self._header = np.array(ids if any(token in tokenizer.special.values() for token in ids) else [], np.int32)
        ends = [token for token in tokenizer.special if abilities.end_token.endswith(token)]
        self._end = tokenizer.special[max(ends, key=len)] if ends else None
        self._think_open = tokenizer.added.get(abilities.think_open.strip())
        self._think_close = tokenizer.added.get(abilities.think_close.strip())
        self._tool_open = tokenizer.added.get(abilities.tool_open)

    def check(self, record: TokenRecord) -> None:
        """Raises Reject for ids that name no token, a mask that does not fit, and turns that are never closed."""
        ids, mask = record.token_ids, record.loss_mask
        bad = next((int(token) for token in np.unique(ids) if int(token) not in self._names), None)
        if bad is not None:
            raise Reject("bad_ids", f"id {bad} names no token; the tokenizer's ids reach {max(self._names)}")
        if mask is not None and mask.size != ids.size:
            raise Reject("bad_mask", f"{ids.size} ids, but a mask of {mask.size}")
        if mask is not None and mask.max() > 1:
            raise Reject("bad_mask", f"the mask holds {mask.max()}; allowed are 0 and 1")
        if record.segments is not None:
            _check_segments(record.segments, ids.size)
        self._check_turns(ids)

    def _check_turns(self, ids: np.ndarray) -> None:
        opened, closed = len(self._answer_starts(ids)), int(np.count_nonzero(ids == self._end))
        least = opened - 1 + self._closes_questions  # the last answer may be cut off
        if self._end is not None and opened and closed < least:
            raise Reject(
                "turns_not_closed",
                f"{opened} answers are opened, but {self._names[self._end]} ({self._end}) stands {closed} times, "
                f"expected at least {least}",
            )

    def answers(self, record: TokenRecord) -> list[tuple[int, int]]:
        """Where answers stand: where the mask is 1, else from each header to its end token, else everywhere."""
        if record.loss_mask is not None:
            edges = np.flatnonzero(np.diff(np.concatenate(([0], record.loss_mask, [0]))))
            return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
        ids = record.token_ids
        spans = [(start, self._answer_end(ids, start)) for start in self._answer_starts(ids)]
        return [span for span in spans if span[0] < span[1]] or [(0, ids.size)]

    def trains_everywhere(self, record: TokenRecord) -> bool:
        """Whether nothing tells what was generated: no mask, no parts, no turns."""
        told = record.loss_mask is not None or record.segments is not None
        return not told and self.answers(record) == [(0, record.token_ids.size)]

    def segments(self, record: TokenRecord) -> Iterator[Segment]:
        """Given parts, else those that the ids tell."""
        if record.segments is not None:
            yield from record.segments
            return
        ids = record.token_ids
        at = 0
        for start, end in self.answers(record):
            if at < start:
                yield "prompt", at, start
            yield from self.parts(ids, start, end)
            at = end
        if at < ids.size:
            yield "prompt", at, int(ids.size)

    def parts(self, ids: np.ndarray, start: int, end: int) -> Iterator[Segment]:
        """Thinking up to its closing token, tool calls from their opening token, response between."""
        tool = self._first(ids, self._tool_open, start, end)
        tool = end if tool is None else tool
        closed = self._first(ids, self._think_close, start, tool)
        opened = self._think_open is not None and self._think_open in ids[max(0, start - 1) : start + 1]
        thought = closed + 1 if closed is not None else tool if opened else start
        for kind, a, b in (("thinking", start, thought), ("response", thought, tool), ("tool", tool, end)):
            if a < b:
                yield kind, a, b

    def _answer_starts(self, ids: np.ndarray) -> list[int]:
        length = self._header.size
        if not length or ids.size < length:
            return []
        windows = np.lib.stride_tricks.sliding_window_view(ids, length)
        return [int(at) + length for at in np.flatnonzero((windows == self._header).all(axis=1))]

    def _answer_end(self, ids: np.ndarray, start: int) -> int:
        end = self._first(ids, self._end, start, ids.size)
        return int(ids.size) if end is None else end + 1

    @staticmethod
    def _first(ids: np.ndarray, token: int | None, start: int, end: int) -> int | None:
        if token is None:
            return None
        found = np.flatnonzero(ids[start:end] == token)
        return start + int(found[0]) if found.size else None


def _check_segments(segments: list[Segment], length: int) -> None:
    at = 0
    for kind, start, end in segments:
        if kind not in SEGMENT_KINDS or start != at or end < start:
            raise Reject(
                "bad_segments", f"{kind} from {start} to {end}, expected one of {', '.join(SEGMENT_KINDS)} from {at}"
            )
        at = end
    if at != length:
        raise Reject("bad_segments", f"they end at {at}, the ids at {length}")
