"""Shared fixtures. Real corpora are used where they lie and are never copied into the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Triton decides at import whether it interprets kernels on the CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora beside the checkout; tests that need it are skipped where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the corpora folder is not beside this checkout")
    return SHARED_DATA
