"""A ring's size: two whole steps of one rank and two slots more, whatever the rows weigh."""

from __future__ import annotations

import pytest

from extractor.ring_size import SLOT_BYTES, num_slots, slot_rows


@pytest.mark.parametrize(
    ("row_bytes", "budget", "rows", "slots"),
    [
        (3 * 7168 * 2, 8192, 1560, 14),  # Kimi-K2.5: 5.25 slots a step
        (4 * 7168 * 2, 8192, 1170, 18),  # and with its last layer: 7 slots and 2 rows
        (3 * 576 * 2, 8192, 8192, 6),
        (3 * 7168 * 2, 1, 1, 6),
        (2 * SLOT_BYTES, 3, 1, 8),  # a row larger than a slot is to be
    ],
)
def test_ring_size(row_bytes: int, budget: int, rows: int, slots: int) -> None:
    assert (slot_rows(row_bytes, budget), num_slots(row_bytes, budget)) == (rows, slots)
