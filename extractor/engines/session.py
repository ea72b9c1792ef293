"""One rank's side of a run: ring, recorder and shard, opened together and closed together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from extractor.capture import Capture, Chunk
from extractor.engines.job import Job
from extractor.engines.recorder import Recorder
from extractor.samples import Sample
from extractor.store import ShardWriter, WriterOptions
from extractor.warm_up import WarmUp


class Session:
    """Takes layer tensors and says where their rows belong; leaves sealed samples in this rank's shard."""

    def __init__(self, job: Job, rank: int, device: torch.device) -> None:
        self._job = job
        self._writer = ShardWriter(
            job.store,
            run_id=job.run_id,
            writer=rank,
            expected_bytes=job.expected_bytes,
            options=WriterOptions(commit_seconds=job.commit_seconds),
        )
        self._recorder = Recorder(self._writer, job)
        self._capture = Capture(
            num_layers=len(job.layer_ids),
            hidden_size=job.hidden_size,
            dtype=getattr(torch, job.dtype),
            device=device,
            slot_rows=job.slot_rows,
            num_slots=job.num_slots,
            sink=self._recorder,
        )
        self._lock = threading.Lock()
        self._warm_up = WarmUp()

    def expect(self, sample: Sample) -> None:
        """Announce a sample before its first row."""
        self._recorder.expect(sample)

    def step(self, layers: Sequence[torch.Tensor], chunks: Sequence[Chunk], seen: np.ndarray | None = None) -> None:
        """Keep `chunks` of this forward pass. `layers`: L tensors [N, H] in stored order; `seen` [N] int: the ids
        that the model was given, compared with the samples' own."""
        if seen is not None:
            self._recorder.check_tokens(chunks, seen)
        if chunks:
            self._capture.step(layers, chunks)
            self._warm_up.step(sum(chunk.count for chunk in chunks))
        else:
            self._capture.check()

    def status(self) -> dict[str, Any]:
        """Totals of this rank: samples, tokens, those of the warm-up, bytes, stalled_seconds and the ring's times."""
        stats = self._capture.stats
        return {
            "samples": self._recorder.sealed_samples,
            "tokens": self._recorder.sealed_tokens,
            "warm_up_tokens": self._warm_up.tokens,
            "warm_up_seconds": self._warm_up.seconds,
            "restarts": self._recorder.restarts,
            "bytes": stats.bytes,
            "stalled_seconds": stats.stalled_seconds,
            "gather_seconds": stats.gather_seconds,
            "copy_wait_seconds": stats.copy_wait_seconds,
            "write_seconds": stats.write_seconds,
            "findings": len(self._recorder.findings),
        }

    def finish(self) -> dict[str, Any]:
        """Write everything that is whole, make it durable, close the shard. Returns the last status."""
        try:
            self._capture.drain()
        finally:
            self.close()
        return {**self.status(), "findings": self._recorder.findings}

    def close(self) -> None:
        """Stop the ring, then close the shard: what is sealed stays. Idempotent."""
        with self._lock:
            if self._capture.close():  # else the recorder is stuck in a write, and the shard in use
                self._writer.close()
