"""Each detector finds its fault, in the right place, and stays quiet on what is right."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extractor.chunk import Chunk
from extractor.detect import HISTORY, Detectors, Finding
from extractor.probe import PROBE, constant_rows, first_element, probe_rows

LAYER_IDS = (2, 30, 58)
HIDDEN = 64
DTYPES = [np.float16, ml_dtypes.bfloat16]


def states(tokens: np.ndarray, seed: int = 0, dtype: type = np.float16, scale: float = 1.0) -> np.ndarray:
    """[n, L, H]: a row depends on its token and (through the seed) on its sample, and grows with the layer."""
    rows = [np.random.default_rng([seed, int(token)]).normal(size=(3, HIDDEN)) for token in tokens]
    return (np.array(rows) * np.array([1.0, 4.0, 20.0])[:, None] * scale).astype(dtype)


def tokens(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + 1000).permutation(50_000)[:count].astype(np.int32)


def no_counts() -> np.ndarray:
    return np.zeros((3, 4), dtype=np.int64)


def feed(detectors: Detectors, sample_id: str, ids: np.ndarray, rows: np.ndarray, position: int = 0) -> list[Finding]:
    return detectors.check(Chunk(sample_id, position, 0, len(rows)), rows, no_counts(), ids)


def places(findings: list[Finding]) -> list[tuple[str, str, int, int, int]]:
    return [(f.kind, f.sample_id, f.position, f.layer_id, f.count) for f in findings]


@pytest.mark.parametrize("dtype", DTYPES)
def test_healthy_samples_find_nothing(dtype) -> None:
    detectors = Detectors(LAYER_IDS)
    for number in range(2 * HISTORY):
        ids = tokens(50, number)
        rows = states(ids, number, dtype)
        rows[0, :, 3] = 3000.0  # the first token's outlier
        assert feed(detectors, f"s{number}", ids[:20], rows[:20]) == []
        assert feed(detectors, f"s{number}", ids[20:], rows[20:], 20) == []
        assert detectors.finish(f"s{number}") == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, -0.0, 7.5])
def test_constant_rows_are_found_row_by_row(dtype, value) -> None:
    ids = tokens(30)
    rows = states(ids, dtype=dtype)
    rows[4:9, 1] = value
    found = feed(Detectors(LAYER_IDS), "s", ids, rows, position=100)
    assert places(found) == [("constant", "s", 104, 30, 5)]
    assert found[0].value == value


def test_zeros_of_either_sign_are_one_constant() -> None:
    ids = tokens(3)
    rows = states(ids)
    rows[1, 2] = np.where(np.arange(HIDDEN) % 2, 0.0, -0.0)
    assert places(feed(Detectors(LAYER_IDS), "s", ids, rows)) == [("constant", "s", 1, 58, 1)]


def test_a_row_with_one_other_element_is_not_constant() -> None:
    bits = np.zeros((1, 1, HIDDEN), dtype=np.uint16)
    for channel in range(HIDDEN):
        bits[:] = 0
        bits[0, 0, channel] = 1
        assert not constant_rows(bits, probe_rows(bits)).any()


def test_a_slot_that_still_holds_the_last_sample_is_found() -> None:
    detectors = Detectors(LAYER_IDS)
    first, second = tokens(40, 1), tokens(40, 2)
    old, new = states(first, 1), states(second, 2)
    new[10:30, 1] = old[10:30, 1]  # one layer, not all rows
    assert feed(detectors, "a", first, old, position=300) == []
    found = feed(detectors, "b", second, new)
    assert places(found) == [("repeated", "b", 10, 30, 20)]
    assert "sample 'a', token 310" in found[0].detail


def test_constant_and_stale_rows_in_one_chunk_are_told_apart() -> None:
    detectors = Detectors(LAYER_IDS)
    first, second = tokens(40, 1), tokens(40, 2)
    old, new = states(first, 1), states(second, 2)
    new[3:8, 0] = 0.0
    new[20, 0] = old[20, 0]
    feed(detectors, "a", first, old)
    assert places(feed(detectors, "b", second, new)) == [("constant", "b", 3, 2, 5), ("repeated", "b", 20, 2, 1)]


def test_a_stale_row_is_found_at_another_position_and_in_the_same_sample() -> None:
    detectors = Detectors(LAYER_IDS)
    ids = tokens(40)
    rows = states(ids)
    feed(detectors, "a", ids[:20], rows[:20])
    found = feed(detectors, "a", ids[20:], rows[:20], position=20)
    assert places(found) == [("repeated", "a", 20, layer_id, 20) for layer_id in LAYER_IDS]


def test_one_row_all_over_a_chunk_is_found() -> None:
    ids = tokens(12)
    rows = np.repeat(states(ids[:1]), 12, axis=0)
    found = feed(Detectors(LAYER_IDS), "a", ids, rows)
    assert [(f.kind, f.layer_id, f.count) for f in found] == [("repeated", layer_id, 11) for layer_id in LAYER_IDS]


def test_what_is_equal_by_right_is_not_repeated() -> None:
    """A common prefix; the same sample computed once more after a preemption; a layer that forgets what differs."""
    detectors = Detectors(LAYER_IDS)
    ids = tokens(30)
    rows = states(ids)
    other = np.concatenate([ids[:20], tokens(10, 5)])
    assert feed(detectors, "a", ids, rows) == []
    assert feed(detectors, "a", ids, rows) == []
    assert feed(detectors, "b", other, np.concatenate([rows[:20], states(other[20:], 5)])) == []
    windowed = np.concatenate([tokens(10, 6), ids[10:]])
    assert feed(detectors, "c", windowed, np.concatenate([states(windowed[:10], 6), rows[10:]])) == []


def test_a_row_older_than_the_table_is_forgotten_not_confused(monkeypatch) -> None:
    monkeypatch.setattr("extractor.detect.REMEMBERED_ROWS", 8)
    detectors = Detectors(LAYER_IDS)
    for number in range(20):
        ids = tokens(30, number)
        assert feed(detectors, f"s{number}", ids, states(ids, number)) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_counted_elements_are_located(dtype) -> None:
    ids = tokens(200)
    rows = states(ids, dtype=dtype)
    largest = float(ml_dtypes.finfo(dtype).max)
    rows[150, 0, 9], rows[151, 0, 2], rows[7, 1, 5], rows[199, 2, 63] = np.nan, np.nan, -np.inf, -largest
    counts = no_counts()
    counts[0, 2], counts[1, 1], counts[2, 0] = 2, 1, 1
    counts[2, 3] = np.array([123_456.0], dtype=np.float32).view(np.int32)[0]
    found = Detectors(LAYER_IDS).check(Chunk("s", 0, 0, 200), rows, counts, ids)
    assert places(found) == [("nan", "s", 150, 2, 2), ("inf", "s", 7, 30, 1), ("saturated", "s", 199, 58, 1)]
    assert [f.detail.split(",")[0] for f in found] == [f"channel {channel}" for channel in (9, 5, 63)]
    assert found[2].value == 123_456.0
    assert "123456" in str(found[2])


@settings(deadline=None, max_examples=50)
@given(place=st.integers(0, 299), channel=st.integers(0, HIDDEN - 1), kind=st.sampled_from(["nan", "inf", "saturated"]))
def test_the_first_element_is_found_wherever_it_is(place: int, channel: int, kind: str) -> None:
    rows = np.ones((300, HIDDEN), dtype=np.float16)
    value = {"nan": np.nan, "inf": np.inf, "saturated": 65_504.0}[kind]
    rows[place, channel] = value
    rows[place + 1 :, 0] = value
    rows[place, channel + 1 :] = value
    assert first_element(rows.view(np.uint16), kind, rows.dtype) == (place, channel)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("scale", "factor"), [(1000.0, 1000.0), (1e-3, 1e-3)])
def test_a_jump_in_one_layer_is_found_and_the_next_sample_is_well(dtype, scale, factor) -> None:
    detectors = Detectors(LAYER_IDS)
    for number in range(6):
        ids = tokens(30, number)
        rows = states(ids, number, dtype)
        if number == 4:
            rows[:, 0] = (rows[:, 0].astype(np.float32) * scale).astype(dtype)
        feed(detectors, f"s{number}", ids, rows)
        found = detectors.finish(f"s{number}")
        assert places(found) == ([("jump", "s4", 0, 2, 29)] if number == 4 else [])
        if found:
            assert found[0].value == pytest.approx(factor, rel=0.3)


def test_a_sample_computed_twice_counts_once() -> None:
    """Preempted in the middle: what was seen before the restart must not move the sample's magnitude."""
    detectors = Detectors(LAYER_IDS)
    ids = tokens(300)
    rows = states(ids, dtype=ml_dtypes.bfloat16)
    feed(detectors, "a", ids[:30], rows[:30])
    detectors.finish("a")
    feed(detectors, "b", ids[:270], (rows[:270] * 1e-4).astype(rows.dtype))
    feed(detectors, "b", ids[:30], rows[:30])
    assert detectors.finish("b") == []


def test_a_first_token_of_another_magnitude_is_no_jump() -> None:
    detectors = Detectors(LAYER_IDS)
    for number, length in enumerate([30, 1, 2, 30]):
        ids = tokens(length, number)
        rows = states(ids, number)
        rows[0] *= 500
        feed(detectors, f"s{number}", ids, rows)
        assert detectors.finish(f"s{number}") == []


def test_all_chunks_of_a_sample_count() -> None:
    detectors = Detectors(LAYER_IDS)
    ids = tokens(300)
    rows = states(ids, dtype=ml_dtypes.bfloat16)
    feed(detectors, "a", ids[:30], rows[:30])
    detectors.finish("a")
    feed(detectors, "b", ids[:270], (rows[:270] * 1e-4).astype(rows.dtype))
    feed(detectors, "b", ids[270:], rows[270:], position=270)
    assert places(detectors.finish("b")) == [("jump", "b", 0, layer_id, 299) for layer_id in LAYER_IDS]


def test_a_lone_outlier_does_not_make_the_next_sample_one() -> None:
    detectors = Detectors(LAYER_IDS)
    for number, scale in enumerate([1.0, 1.0, 2.0**25, 1.0, 1.0]):
        ids = tokens(30, number)
        feed(detectors, f"s{number}", ids, states(ids, number, ml_dtypes.bfloat16, scale))
        assert len(detectors.finish(f"s{number}")) == (3 if number == 2 else 0)


def test_findings_of_a_sample_are_merged_by_kind_and_layer() -> None:
    detectors = Detectors(LAYER_IDS)
    ids = tokens(60)
    rows = states(ids)
    rows[5, 1] = 0.0
    rows[[25, 30], 1] = 0.0
    rows[45, 2] = 3.0
    peaks = []
    for part, (saturated, peak) in enumerate([(0, 0.0), (4, 9e4), (2, 7e4)]):
        counts = no_counts()
        counts[0, [0, 3]] = saturated, np.array([peak], np.float32).view(np.int32)[0]
        rows[20 * part + 8, 0, 6] = 65_504.0 if saturated else 1.0
        here = slice(20 * part, 20 * part + 20)
        peaks += detectors.check(Chunk("s", 20 * part, 0, 20), rows[here], counts, ids[here])
    assert len(peaks) == 5
    merged = detectors.finish("s")
    assert sorted(places(merged)) == [
        ("constant", "s", 5, 30, 3),
        ("constant", "s", 45, 58, 1),
        ("saturated", "s", 28, 2, 6),
    ]
    assert {f.kind: f.value for f in merged if f.layer_id != 30} == {"constant": 3.0, "saturated": 9e4}
    assert detectors.finish("s") == []


def test_a_restart_forgets_what_was_found_before_it() -> None:
    detectors = Detectors(LAYER_IDS)
    ids = tokens(20)
    rows = states(ids)
    feed(detectors, "s", ids, np.zeros_like(rows))
    feed(detectors, "s", ids, rows)
    assert detectors.finish("s") == []


def test_a_finding_without_a_value_is_valid_json() -> None:
    ids = tokens(12)
    found = feed(Detectors(LAYER_IDS), "a", ids, np.repeat(states(ids[:1]), 12, axis=0))
    assert json.loads(json.dumps(found[0].as_json(), allow_nan=False)) == {
        "kind": "repeated", "sample_id": "a", "position": 0, "layer_id": 2, "count": 11, "value": None,
        "detail": "the bits of sample 'a', token 11",
    }  # fmt: skip


def test_finish_of_an_unseen_sample_is_quiet() -> None:
    assert Detectors(LAYER_IDS).finish("never checked") == []


@pytest.mark.parametrize("hidden", [1, 5, 16, 17, 40, 129])
def test_odd_hidden_sizes(hidden: int) -> None:
    detectors = Detectors((0,))
    rows = np.random.default_rng(0).normal(size=(10, 1, hidden)).astype(np.float16)
    rows[3] = 0
    assert probe_rows(rows.view(np.uint16)).shape == (10, 1, PROBE)
    found = detectors.check(Chunk("s", 0, 0, 10), rows, np.zeros((1, 4), np.int64), tokens(10))
    expected = 10 if hidden == 1 else 1  # a row of one element is constant
    assert [(f.kind, f.count) for f in found] == [("constant", expected)]
