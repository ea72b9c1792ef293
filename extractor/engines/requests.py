"""Which rows of an engine step belong to which sample, and which rank keeps them.

Everything is decided from what the scheduler says, which all tensor-parallel ranks see alike: no messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from extractor.capture import Chunk
from extractor.errors import EngineError
from extractor.sizes import counted


@dataclass(slots=True)
class _Request:
    sample_id: str
    num_tokens: int
    owner: int
    next_position: int = 0


class RequestTracker:
    """Follows each request from its first step to its last. One per rank; all ranks' trackers agree."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self._rank = rank
        self._loads = [0] * num_ranks  # tokens given to each rank so far
        self._requests: dict[str, _Request] = {}

    def begin(self, request_id: str, sample_id: str, num_tokens: int) -> bool:
        """First scheduling of a request: the least loaded rank owns it, ties go to the lower rank.

        A preempted request may be announced again and keeps its owner. Returns True when this rank owns it.
        """
        known = self._requests.get(request_id)
        if known is None:
            owner = min(range(len(self._loads)), key=self._loads.__getitem__)
            self._loads[owner] += num_tokens
            known = self._requests[request_id] = _Request(sample_id, num_tokens, owner)
        return known.owner == self._rank

    def chunks(self, order: Iterable[tuple[str, int]], computed: Mapping[str, int]) -> list[Chunk]:
        """This rank's chunks of one step.

        `order`: (request id, rows) in the order of the step's rows; padding rows follow after them and belong to
        nobody. `computed`: tokens of each request computed before the step. Raises EngineError on a hole.
        """
        chunks: list[Chunk] = []
        row = 0
        for request_id, count in order:
            request = self._requests.get(request_id)
            if request is not None:
                start = computed[request_id]
                kept = self._advance(request, start, count)
                if kept and request.owner == self._rank:
                    chunks.append(Chunk(request.sample_id, start, row, kept))
            row += count
        return chunks

    def _advance(self, request: _Request, start: int, count: int) -> int:
        """Rows of the prompt in this step (rows of generated tokens are not kept)."""
        kept = min(count, request.num_tokens - start)
        if kept <= 0:
            return 0
        if start not in (0, request.next_position):
            raise EngineError(
                f"sample {request.sample_id!r}: the engine computes position {start} next, but "
                f"{request.next_position} rows were captured, so rows are missing or doubled; is prefix caching on? "
                "run again with it off"
            )
        request.next_position = start + kept
        return kept

    def finish(self, request_ids: Iterable[str]) -> None:
        """Requests the engine is done with. Raises EngineError for one that lacks rows."""
        for request_id in request_ids:
            request = self._requests.pop(request_id, None)
            if request is not None and request.next_position != request.num_tokens:
                raise EngineError(
                    f"sample {request.sample_id!r}: the engine finished it after {request.next_position} of "
                    f"{counted(request.num_tokens, 'token')}; nothing of it was stored; run the same command again to "
                    "redo it"
                )
