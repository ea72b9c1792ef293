"""Is a data file a sound LMDB file? Asked of LMDB's own offline checker, which opens nothing and trusts no byte."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from extractor.errors import CorruptError, StoreError
from extractor.store.index import read_index
from extractor.store.shard_file import ShardFile


@contextmanager
def walking(files: Sequence[ShardFile], workers: int) -> Iterator[dict[Future[list[str]], int]]:
    """`structure_errors` of each file, on its way -> which file. Those not begun end when the caller breaks off."""
    with ThreadPoolExecutor(workers, "trees") as pool:
        try:
            yield {pool.submit(structure_errors, file): index for index, file in enumerate(files)}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def structure_errors(file: ShardFile) -> list[str]:
    """What is wrong with a shard's trees and its lists of samples, whether or not anything else depends on it."""
    return [f"the tree of {file.path.name} is damaged: {error}" for error in tree_errors(file.file)] + index_errors(
        file
    )


def index_errors(file: ShardFile) -> list[str]:
    """Which of the two lists of a closed shard's samples, the blocks and their summary, is not whole."""
    try:
        tree = file.tree()
        lists = [read_index(tree, name, file.file) for name in (b"index", b"summary") if tree.has(name)]
    except CorruptError as error:
        return [f"one of the two lists of samples in {file.path.name} is damaged, the other one holds: {error.problem}"]
    if all(ids == lists[0][1] and np.array_equal(entries, lists[0][0]) for entries, ids in lists):
        return []
    return [f"{file.path.name} has two lists of samples, which differ"]


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
