"""Fixtures of more than one benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from settings import DISK, MEMORY


@pytest.fixture(params=["disk", "tmpfs"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """(kind, an empty folder there)."""
    parent = DISK if request.param == "disk" else MEMORY
    if not parent.is_dir():
        pytest.skip(f"there is no {parent}")
    with TemporaryDirectory(prefix="extractor-bench-", dir=parent) as folder:
        yield request.param, Path(folder)
