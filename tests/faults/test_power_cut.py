"""The power fails: what was synced is there, of the rest any part may be."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("cuts", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_acknowledged_samples_survive_a_power_cut(preload, tmp_path, cuts):
    result = preload("power_cut.py", tmp_path, cuts, "sync")
    assert result["operations"] > 100
    assert result["wrong"] == []


def test_the_simulation_notices_a_writer_that_does_not_sync(preload, tmp_path):
    result = preload("power_cut.py", tmp_path, 60, "no-sync")
    assert result["wrong"]
