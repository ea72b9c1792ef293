"""`plan --replicas`: hours of all together, disk of each node."""

from __future__ import annotations

import json

import pytest

from extractor.budget.run_records import rate_like
from extractor.cli import main

ROW = 43_008


@pytest.fixture
def lengths(tmp_path):
    """1,000 samples of 8,000 tokens."""
    file = tmp_path / "lengths.jsonl"
    file.write_text("".join(json.dumps({"seq_len": 8000}) + "\n" for _ in range(1000)))
    return file


def planned(capsys, *args):
    code = main(["plan", *map(str, args), "--hidden-size", "7168", "--num-layers", "61", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_hours_divide_and_disks_hold_a_share_and_a_lease(capsys, lengths):
    _, one = planned(capsys, lengths, "--rate", "1000")
    code, four = planned(capsys, lengths, "--rate", "1000", "--replicas", "4")
    assert code == 0
    assert one["replicas"] is None
    assert four["replicas"]["hours"] == pytest.approx(8_000_000 / 4000 / 3600)
    assert four["replicas"]["node_tokens"] == 2_000_000 + 1_000_000
    assert 3_000_000 * ROW < four["replicas"]["node_bytes"] < 3_000_000 * ROW * 1.01
    assert four["total"]["hours"] == pytest.approx(one["total"]["hours"] / 4)
    assert "4 replicas, each: stated rate" in four["rate"]["origin"]


def test_a_lease_is_bounded(capsys, lengths):
    _, two = planned(capsys, lengths, "--replicas", "2")
    assert two["replicas"]["node_tokens"] == 8_000_000 // 2 + (1 << 20)
    assert two["replicas"]["hours"] is None


def test_the_table_says_it(capsys, lengths):
    main(["plan", str(lengths), "--hidden-size", "7168", "--num-layers", "61", "--rate", "1k", "--replicas", "4"])
    assert "on 4 replicas: 0.6 h; each node's own disk needs 120." in capsys.readouterr().out.replace("\n", " ")


def test_no_replicas_at_all(capsys, lengths):
    assert main(["plan", str(lengths), "--hidden-size", "8", "--num-layers", "6", "--replicas", "0"]) == 2
    assert "--replicas is 0; at least 1" in capsys.readouterr().err


def test_a_run_over_replicas_tells_the_rate_of_one(tmp_path):
    (tmp_path / "runs").mkdir()
    record = {"run_id": "r", "tokens": 800, "seconds": 2.0, "tokens_per_s": 400.0, "engine": "vllm", "machine": "m"}
    (tmp_path / "runs" / "r.json").write_text(json.dumps({**record, "replicas": [{}, {}, {}, {}]}))
    assert rate_like(tmp_path).tokens_per_s == 100.0
