"""Token ids for leases, read from the samples file once and kept until they are sealed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from extractor.samples import Sample, SamplesFile


class SampleSource:
    """Memory: the samples of the leases that are out or came back, a few MB for each replica."""

    def __init__(self, samples: SamplesFile) -> None:
        self._stream = enumerate(samples)
        self._held: dict[int, Sample] = {}

    def fetch(self, rows: Sequence[int]) -> tuple[Sample, ...]:
        """Samples of `rows`: each was fetched before and not dropped, or lies beyond all rows fetched so far."""
        for row in rows:
            if row not in self._held:
                self._read_to(row)
        return tuple(self._held[row] for row in rows)

    def drop(self, rows: Iterable[int]) -> None:
        for row in rows:
            self._held.pop(row, None)

    def _read_to(self, wanted: int) -> None:
        for row, sample in self._stream:
            if row == wanted:
                self._held[row] = sample
                return
        raise AssertionError(f"row {wanted} was dropped before it was sealed")
