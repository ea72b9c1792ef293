"""Values that lie one behind the other in a data file, and the buffers that take them in one `preadv`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from extractor.record import pages_of
from extractor.store.tree import PAGE_HEADER

Place = tuple[np.ndarray, int]  # where the value goes, uint8 [n], and its byte offset
_MOST = 256  # values; one call takes at most 1,024 buffers, of which each value needs three


def runs(places: Sequence[Place], page_bytes: int) -> Iterator[list[Place]]:
    """Cut `places` where one does not begin on the page behind the last one's end."""
    run = list(places[:1])
    for (last, offset), place in pairwise(places):
        follows = place[1] == offset + int(pages_of(last.size, page_bytes)) * page_bytes
        if not follows or len(run) == _MOST:
            yield run
            run = []
        run.append(place)
    if run:
        yield run


def buffers(run: Sequence[Place], page_bytes: int) -> tuple[list[bytearray], list[bytearray | memoryview]]:
    """(the values' page headers, all buffers from the first header to the end of the last value)."""
    headers = [bytearray(PAGE_HEADER.size) for _ in run]
    rest: list[bytearray | memoryview] = []
    for header, (out, _) in zip(headers, run, strict=True):
        used = PAGE_HEADER.size + out.size
        rest += [header, out.data, bytearray(int(pages_of(out.size, page_bytes)) * page_bytes - used)]
    return headers, rest[:-1]
