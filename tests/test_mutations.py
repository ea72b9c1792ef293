"""Deliberate faults in capture. Each must be loud: an error, or values that the comparison with the reference rejects.

`noticed_by`: a pattern of the error, a detector's kind, or VALUES where only a comparison notices (the canary of a run,
or `verify --reference`).
"""

from __future__ import annotations

import re

import pytest
import torch
from fake_v2_runner import FakeV2Runner
from handover_runs import differences, make_samples, run, suspicions

from extractor.capture import Chunk
from extractor.engines.recorder import Recorder
from extractor.engines.requests import RequestTracker
from extractor.engines.session import Session
from extractor.engines.vllm.handover import Handover
from extractor.engines.vllm.runners import RunnerView, StepView
from extractor.errors import ExtractorError

VALUES = "values"


def drop_a_chunk(patch):
    """The last chunk of every third step is lost."""
    original, calls = RequestTracker.chunks, []

    def chunks(self, order, computed):
        calls.append(1)
        return original(self, order, computed)[: -1 if len(calls) % 3 == 0 else None]

    patch.setattr(RequestTracker, "chunks", chunks)


def swap_two_requests(patch):
    """Rows are attributed in the scheduler's order, not the batch's."""
    original = RunnerView.step

    def step(self, output):
        view = original(self, output)
        return view and StepView(view.layers, list(output.num_scheduled_tokens.items()), view.token_ids)

    patch.setattr(RunnerView, "step", step)


def stale_buffer(patch):
    """Every second step is read after its buffers were reused."""
    original, calls = FakeV2Runner.execute_model, []

    def execute_model(self, output):
        original(self, output)
        calls.append([layer.clone() for layer in self._buffers])
        if len(calls) % 2 == 0 and self.execute_model_state is not None:
            for layer, before in zip(self.execute_model_state.aux_hidden_states, calls[-2], strict=True):
                layer.copy_(before[: len(layer)])

    patch.setattr(FakeV2Runner, "execute_model", execute_model)


def unwritten_buffer(patch):
    """A layer is never copied into its buffer."""
    original = RunnerView.step

    def step(self, output):
        view = original(self, output)
        return view and StepView([torch.zeros_like(view.layers[0]), *view.layers[1:]], view.order, view.token_ids)

    patch.setattr(RunnerView, "step", step)


def owner_differs_on_one_rank(patch):
    """Rank 1 breaks ties to the higher rank."""
    original = RequestTracker.begin

    def begin(self, request_id, sample_id, num_tokens):
        if self._rank == 1 and request_id not in self._requests:
            self._loads = [load + (rank == 0) for rank, load in enumerate(self._loads)]
        return original(self, request_id, sample_id, num_tokens)

    patch.setattr(RequestTracker, "begin", begin)


def padding_kept(patch):
    """Padding rows are counted to the last request of the batch."""
    original = RunnerView.step

    def step(self, output):
        view = original(self, output)
        if view is None:
            return None
        padded = list(self._runner.execute_model_state.aux_hidden_states)
        name, count = view.order[-1]
        extra = len(padded[0]) - len(view.layers[0])
        return StepView(padded, [*view.order[:-1], (name, count + extra)], view.token_ids)

    patch.setattr(RunnerView, "step", step)


def layer_order_sorted(patch):
    """Layers are stored in ascending order, not in the user's."""
    original = Handover.__init__

    def init(self, *args):
        original(self, *args)
        self._slots = sorted(self._slots)

    patch.setattr(Handover, "__init__", init)


def layer_off_by_one(patch):
    """Outputs of layer k are stored as inputs of layer k."""
    original = RunnerView.__init__

    def init(self, runner, layer_ids):
        original(self, runner, tuple(layer_id + 1 for layer_id in layer_ids))

    patch.setattr(RunnerView, "__init__", init)


def last_layer_dropped(patch):
    """The model's forward pass ends before it appends the last state."""
    original = RunnerView.step

    def step(self, output):
        view = original(self, output)
        return view and StepView(view.layers[:-1], view.order, view.token_ids)

    patch.setattr(RunnerView, "step", step)


def rows_shifted_by_one(patch):
    """The first row of each chunk is the row before it."""
    original = Session.step

    def step(self, layers, chunks, seen=None):
        shifted = [Chunk(c.sample_id, c.position, max(0, c.row - 1), c.count) for c in chunks]
        return original(self, layers, shifted, seen)

    patch.setattr(Session, "step", step)


def cached_prefix_skipped(patch):
    """The engine finds the first 16 tokens of each sample in its prefix cache and computes the rest."""
    original = RequestTracker.chunks

    def chunks(self, order, computed):
        return original(self, order, {name: start or 16 for name, start in computed.items()})

    patch.setattr(RequestTracker, "chunks", chunks)


def preemption_appends(patch):
    """Rows of a preempted sample are kept and those of its second start are added."""
    patch.setattr(Recorder, "_restart", lambda self, item: None)


def sealed_early(patch):
    """A sample is sealed one token before its end."""
    original = Recorder.write

    def write(self, chunk, rows, counts):
        original(self, chunk, rows, counts)
        item = self._open.get(chunk.sample_id)
        if item is not None and item.rows == item.sample.token_ids.size - 1:
            self._seal(item)

    patch.setattr(Recorder, "write", write)


def finished_without_rows(patch):
    """A request is aborted in the middle and reported as finished."""
    original = Handover.step

    def step(self, output):
        original(self, output)
        running = [name for name, request in self._tracker._requests.items() if request.next_position]
        output.finished_req_ids = output.finished_req_ids | set(running[:1])

    patch.setattr(Handover, "step", step)


MUTATIONS = {
    drop_a_chunk: "rows of|was captured after|not stored|missing",
    swap_two_requests: VALUES,
    stale_buffer: "repeated",
    unwritten_buffer: "constant",
    owner_differs_on_one_rank: "missing",
    padding_kept: "rows are missing or doubled|the engine computes position",
    layer_order_sorted: VALUES,
    layer_off_by_one: VALUES,
    last_layer_dropped: "returned 2 of 3 requested hidden states",
    rows_shifted_by_one: VALUES,
    cached_prefix_skipped: "is prefix caching on",
    preemption_appends: "was captured after",
    sealed_early: "can't be sealed: rows .* were never written",
    finished_without_rows: "the engine finished it after",
}


@pytest.mark.parametrize(("mutate", "noticed_by"), MUTATIONS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_caught(tmp_path, monkeypatch, mutate, noticed_by):
    mutate(monkeypatch)
    samples = make_samples()
    try:
        store, statuses = run(tmp_path / "store", samples, 2, preempt_every=2)
        said = "; ".join([*differences(store, samples), *suspicions(statuses)])
    except ExtractorError as error:
        assert noticed_by != VALUES
        said = str(error)
    assert said, "nobody noticed"
    assert noticed_by == VALUES or re.search(noticed_by, said), said


def test_without_a_fault_nothing_is_caught(tmp_path):
    samples = make_samples()
    store, statuses = run(tmp_path / "store", samples, 2, preempt_every=2)
    assert differences(store, samples) == []
    assert suspicions(statuses) == set()
