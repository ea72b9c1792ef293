"""How large a job's ring is: enough slots that no step waits for one while the sink keeps up."""

from __future__ import annotations

import math

SLOT_BYTES = 64 << 20  # a step larger than a slot spans several
STEPS_IN_FLIGHT = 2  # under vLLM's asynchronous scheduling
MIN_SLOTS = 6


def slot_rows(row_bytes: int, token_budget: int) -> int:
    """Rows of one slot, at most a step's."""
    return max(1, min(token_budget, SLOT_BYTES // row_bytes))


def num_slots(row_bytes: int, token_budget: int) -> int:
    """For the steps in flight, each of which may belong to one rank whole, and two slots that are being written."""
    return max(MIN_SLOTS, STEPS_IN_FLIGHT * math.ceil(token_budget / slot_rows(row_bytes, token_budget)) + 2)
