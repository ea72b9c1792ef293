"""The same ring on a real GPU: values, order, pinned memory, and a step that does not wait for the device."""

from __future__ import annotations

import pytest
import torch

from extractor.bench.gpu_device import Gpu
from extractor.bench.gpu_ring import SCENARIOS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_ring_on_a_gpu(scenario) -> None:
    assert SCENARIOS[scenario](Gpu()) == []
