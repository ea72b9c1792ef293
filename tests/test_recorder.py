"""From rows to seals: what the recorder hands to the shard writer, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from extractor.capture import Chunk
from extractor.engines.job import Job
from extractor.engines.recorder import Recorder
from extractor.errors import EngineError
from extractor.samples import Sample


class FakeWriter:
    """Keeps what a ShardWriter would store."""

    def __init__(self):
        self.rows, self.sealed = {}, {}

    def write_rows(self, sample_id, position, rows):
        kept = self.rows.setdefault(sample_id, [])
        assert position == sum(map(len, kept))
        kept.append(rows.copy())

    def discard(self, sample_id):
        self.rows.pop(sample_id, None)

    def seal(self, sample_id, *, token_ids, loss_mask, stats):
        self.sealed[sample_id] = (np.concatenate(self.rows.pop(sample_id)), token_ids, loss_mask, stats)


def _job(overflow="saturate"):
    return Job(
        run_id="r",
        store=Path("s"),
        layer_ids=(2, 5),
        num_layers=6,
        hidden_size=4,
        dtype="float16",
        overflow=overflow,
        expected_bytes=0,
        token_budget=16,
        commit_seconds=1.0,
    )


def _sample(name, length):
    return Sample(name, np.arange(length, dtype=np.int32), np.ones(length, np.uint8))


def _rows(count, start=0.0):
    return np.arange(count * 8, dtype=np.float16).reshape(count, 2, 4) + np.float16(start)


def _counts(saturated=0, inf=0, nan=0, peak=1.0):
    one = [saturated, inf, nan, int(np.float32(peak).view(np.uint32))]
    return np.array([[0, 0, 0, 0], one], np.int64)


@pytest.fixture
def writer():
    return FakeWriter()


def test_interleaved_samples_are_sealed_when_whole(writer):
    recorder = Recorder(writer, _job())
    recorder.expect(_sample("a", 3))
    recorder.expect(_sample("b", 1))
    recorder.write(Chunk("a", 0, 0, 2), _rows(2), _counts(peak=3.0))
    recorder.write(Chunk("b", 0, 2, 1), _rows(1, 100), _counts())
    assert list(writer.sealed) == ["b"]
    recorder.write(Chunk("a", 2, 0, 1), _rows(1, 50), _counts(peak=7.5))
    rows, token_ids, _, stats = writer.sealed["a"]
    np.testing.assert_array_equal(rows, np.concatenate([_rows(2), _rows(1, 50)]))
    assert token_ids.tolist() == [0, 1, 2]
    assert stats["max_abs"].tolist() == [0.0, 7.5]
    assert (recorder.sealed_samples, recorder.sealed_tokens) == (2, 4)
    assert recorder.findings == []


def test_restart_forgets_rows_and_counts(writer):
    recorder = Recorder(writer, _job())
    recorder.expect(_sample("a", 3))
    recorder.write(Chunk("a", 0, 0, 2), _rows(2), _counts(saturated=5, peak=9e4))
    recorder.expect(_sample("a", 3))  # announced again: preempted
    recorder.write(Chunk("a", 0, 0, 3), _rows(3, 20), _counts())
    rows, _, _, stats = writer.sealed["a"]
    np.testing.assert_array_equal(rows, _rows(3, 20))
    assert stats["saturated"].tolist() == [0, 0]
    assert recorder.findings == []


@pytest.mark.parametrize("second", [Chunk("a", 1, 0, 1), Chunk("a", 3, 0, 1)], ids=["doubled", "missing"])
def test_holes_and_doubles_name_the_sample(writer, second):
    recorder = Recorder(writer, _job())
    recorder.expect(_sample("a", 4))
    recorder.write(Chunk("a", 0, 0, 2), _rows(2), _counts())
    with pytest.raises(EngineError, match=rf"'a': position {second.position} was captured after 2 rows"):
        recorder.write(second, _rows(1), _counts())
    assert not writer.sealed


def test_counts_add_up_per_sample_and_are_reported(writer):
    recorder = Recorder(writer, _job())
    recorder.expect(_sample("a", 2))
    recorder.write(Chunk("a", 0, 0, 1), _rows(1), _counts(saturated=2, inf=1, peak=8e4))
    recorder.write(Chunk("a", 1, 0, 1), _rows(1, 9), _counts(saturated=1, nan=4, peak=7e4))
    stats = writer.sealed["a"][3]
    assert stats["saturated"].tolist() == [0, 3]
    assert stats["max_abs"].tolist() == [0.0, 8e4]
    found = [(f["kind"], f["sample_id"], f["layer_id"], f["count"]) for f in recorder.findings]
    assert found == [("saturated", "a", 5, 3), ("inf", "a", 5, 1), ("nan", "a", 5, 4)]


def test_rows_of_another_sample_are_reported(writer):
    """A slot that was handed over before its copy arrived still holds the sample before."""
    recorder = Recorder(writer, _job())
    recorder.expect(_sample("a", 3))
    recorder.expect(Sample("b", np.array([7, 8], np.int32), np.ones(2, np.uint8)))
    recorder.write(Chunk("a", 0, 0, 3), _rows(3), _counts())
    recorder.write(Chunk("b", 0, 3, 2), _rows(2), _counts())
    found = [(f["kind"], f["sample_id"], f["layer_id"], f["count"], f["detail"]) for f in recorder.findings]
    assert found == [("repeated", "b", layer_id, 2, "the bits of sample 'a', token 0") for layer_id in (2, 5)]


def _overflow(writer, rows, saturated):
    """The message for `rows` [2, 2, 4] at positions 4 and 5 of sample a."""
    recorder = Recorder(writer, _job(overflow="error"))
    recorder.expect(_sample("a", 9))
    recorder.write(Chunk("a", 0, 0, 4), _rows(4), _counts())
    with pytest.raises(EngineError, match="--dtype bfloat16") as caught:
        recorder.write(Chunk("a", 4, 0, 2), rows, _counts(saturated, inf=int(np.isinf(rows).sum()), peak=8e4))
    return str(caught.value)


def test_overflow_error_names_the_place_and_the_value(writer):
    rows = _rows(2)
    rows[0, 1, 0] = np.inf  # not a saturated value
    rows[1, 1, 3] = -65504
    assert "'a' token 5 layer 5 channel 3 is -80000, beyond fp16's 65,504;" in _overflow(writer, rows, saturated=1)


def test_overflow_error_of_several_values_claims_the_largest_for_none(writer):
    rows = _rows(2)
    rows[0, 1, 2] = rows[1, 1, 3] = 65504
    said = _overflow(writer, rows, saturated=2)
    assert "'a' token 4 layer 5 channel 2 is the first of 2 values of this layer in tokens 4 to 5 beyond" in said
    assert "the largest |x| of them is 80000;" in said


def test_overflow_error_does_not_choose_between_a_clipped_and_a_true_65504(writer):
    rows = _rows(2)
    rows[0, 1, 2] = rows[1, 1, 3] = 65504
    assert "is the first of 1 values" in _overflow(writer, rows, saturated=1)


def test_rows_of_another_request_are_noticed(writer):
    recorder = Recorder(writer, _job())
    recorder.expect(_sample("a", 4))
    seen = np.array([7, 7, 0, 1, 2, 3], np.int32)
    recorder.check_tokens([Chunk("a", 0, 2, 4)], seen)
    with pytest.raises(EngineError, match="'a' position 0: the model was given token 7, the sample holds 0"):
        recorder.check_tokens([Chunk("a", 0, 1, 4)], seen)
