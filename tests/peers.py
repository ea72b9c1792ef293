"""Other projects for tests: `.peers` in the checkout, filled from peers.txt, comes last on the path so that it can't
shadow anything of the environment. Import this module before `pytest.importorskip` of a peer."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HINT = "pip install --no-deps --target .peers -r tests/peers.txt"

if (ROOT / ".peers").is_dir() and str(ROOT / ".peers") not in sys.path:
    sys.path.append(str(ROOT / ".peers"))
