"""The V2 runner's peculiarities and tensor parallelism, against a fake that follows vLLM's source."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from fake_v2_runner import DeepseekV2Model, FakeModel, FakeScheduler, FakeV2Runner
from handover_runs import BUDGET, LENGTHS, differences, make_samples, run, suspicions
from vllm.v1.core.sched.output import SchedulerOutput

from extractor.engines.vllm.runners import RunnerView
from extractor.errors import EngineError


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("preempt_every", [0, 2, 5])
def test_every_value_is_right_on_any_number_of_ranks(tmp_path, ranks, preempt_every):
    samples = make_samples()
    store, statuses = run(tmp_path / "store", samples, ranks, preempt_every=preempt_every, seed=ranks)
    assert differences(store, samples) == []
    assert suspicions(statuses) == set()
    assert len(store) == len(samples)
    assert sum(status["samples"] for status in statuses) == len(samples), "a sample was stored by two ranks"


def test_embeddings_beside_padded_layers(tmp_path):
    """Where the model can't return id 0, the embedding module gives it, for the step's own rows only."""
    samples = make_samples()
    store, statuses = run(tmp_path / "store", samples, 2, layer_ids=(6, 0, 2), model=FakeModel(DeepseekV2Model))
    assert differences(store, samples) == []
    assert suspicions(statuses) == set()


class DeepseekV2DecoderLayer(torch.nn.Linear):
    """By this name a layer that divides what it adds, in fp16."""

    def __init__(self, scale: float, dtype: torch.dtype) -> None:
        super().__init__(1, 1, dtype=dtype)
        self.routed_scaling_factor = scale


@pytest.mark.parametrize(
    ("scale", "dtype", "refused"),
    [(2.5, torch.float16, True), (1.0, torch.float16, False), (2.5, torch.bfloat16, False)],
)
def test_states_that_vllm_scales_are_refused(scale, dtype, refused):
    model = FakeModel()
    model.model.layer = DeepseekV2DecoderLayer(scale, dtype)
    runner = FakeV2Runner(BUDGET, model)
    if not refused:
        RunnerView(runner, (2,))
        return
    with pytest.raises(EngineError, match=r"divides the hidden states .* by 2\.5.*--compute-dtype bfloat16"):
        RunnerView(runner, (2,))


def test_ranks_share_the_tokens_evenly(tmp_path):
    samples = make_samples(lengths=[int(n) for n in np.random.default_rng(3).integers(1, 120, 120)])
    _, statuses = run(tmp_path / "store", samples, 8)
    tokens = [status["tokens"] for status in statuses]
    assert max(tokens) - min(tokens) <= 120, "no rank is ahead by more than one sample"


def test_many_one_token_samples_in_a_step(tmp_path):
    samples = make_samples(lengths=[1] * 100)
    store, _ = run(tmp_path / "store", samples, 4, max_running=BUDGET)
    assert differences(store, samples) == []


def test_the_fake_really_overwrites_pads_permutes_and_preempts(tmp_path):
    """Otherwise the tests above would prove nothing."""
    runner = FakeV2Runner(BUDGET)
    view = RunnerView(runner, (2, 5))
    permuted = padded = announced = 0
    for output in FakeScheduler(make_samples(), BUDGET, preempt_every=2).steps():
        announced += len(output.scheduled_new_reqs)
        runner.execute_model(output)
        step = view.step(output)
        if step is not None:
            rows = sum(count for _, count in step.order)
            permuted += [name for name, _ in step.order] != list(output.num_scheduled_tokens)
            padded += runner.execute_model_state.aux_hidden_states[0].shape[0] > rows
            before = step.layers[0][:rows].clone()
            runner.sample_tokens()
            assert not torch.equal(step.layers[0][:rows], before)
    assert permuted
    assert padded
    assert announced > len(LENGTHS)


def test_the_fakes_scheduler_speaks_vllms_language():
    known = {item.name for item in fields(SchedulerOutput)}
    for output in FakeScheduler(make_samples(), BUDGET).steps():
        assert set(vars(output)) <= known


def test_a_batch_with_other_requests_than_planned_is_refused():
    runner = FakeV2Runner(BUDGET)
    view = RunnerView(runner, (2,))
    output = next(FakeScheduler(make_samples(), BUDGET).steps())
    runner.execute_model(output)
    runner.execute_model_state.input_batch.req_ids.pop()
    with pytest.raises(EngineError, match="the scheduler planned"):
        view.step(output)


def test_a_model_that_cannot_return_layers_is_refused():
    runner = FakeV2Runner(BUDGET)
    runner.model = torch.nn.Linear(1, 1)
    with pytest.raises(EngineError, match="Linear can't return hidden states"):
        RunnerView(runner, (2,))


def test_capture_is_on_before_graphs_are_captured():
    """vLLM hands `use_aux_hidden_state_outputs` to graph capture after the model is loaded: it must be set by then."""
    runner = FakeV2Runner(BUDGET)
    RunnerView(runner, (5, 2))
    assert runner.use_aux_hidden_state_outputs
    assert runner.model.model.aux_hidden_state_layers == (2, 5)
