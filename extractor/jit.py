"""Numba, for all modules here that compile with it.

Ranks that vLLM spawns import the script that started them, and with it such a module and Numba; nothing else of ours
runs there before vLLM looks at every loaded module.
"""

from __future__ import annotations

import numba

from extractor.llvmlite_limits import teach_llvmlite_its_limits

__all__ = ["numba"]

teach_llvmlite_its_limits()
