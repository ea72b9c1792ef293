"""Is a data file a sound LMDB file? Asked of LMDB's own offline checker, which opens nothing and trusts no byte."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from extractor.errors import StoreError


@contextmanager
def walking(files: Sequence[Path], workers: int) -> Iterator[dict[Future[list[str]], int]]:
    """`tree_errors` of each file, on its way -> which file. Those not begun when the caller breaks off are dropped."""
    with ThreadPoolExecutor(workers, "trees") as pool:
        try:
            yield {pool.submit(tree_errors, file): index for index, file in enumerate(files)}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def tree_errors(file: Path) -> list[str]:
    """What is wrong with the trees of `file`, in the checker's words; nothing where it is sound.

    The checker is pure Python and looks at every page number (100 us for a MiB), so it gets a process of its own.
    Raises StoreError when it could not do its work.
    """
    command = [sys.executable, "-m", "lmdb", "verify", "-s", str(file.absolute())]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if result.returncode == 0:
        return []
    _, found, verdict = result.stderr.partition("verify: ")
    if result.returncode != 1 or not found:
        raise StoreError(
            f"the tree of {file} could not be checked: `python -m lmdb verify` ended with {result.returncode}: "
            f"{result.stderr.strip()[-500:] or 'no output'}; try again, with fewer --workers where memory is short"
        )
    return result.stdout.splitlines() or [verdict.strip()]
