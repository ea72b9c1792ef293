"""Run under faults.c: fail each write, sync or reservation of the workload in turn, each time in a forked process.

Prints one result for each: [kind of error that came out, its message, what was wrong with the store afterwards].
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import sys
from pathlib import Path

from children import exit_of, in_child
from workload import MANIFEST, assert_whole, samples, write_missing

from extractor.errors import ExtractorError
from extractor.store import Store, prepare_store

KINDS = {"write": 1, "sync": 2, "reserve": 4}
LIBRARY = ctypes.CDLL(None)


def run_failing(root, kind, at, error, is_short):
    """The result of a run of the workload whose operation number `at` fails; None when it has none such."""
    path = prepare_store(root / "s", MANIFEST).path
    told = root / "told"

    def work():
        acknowledged = []
        LIBRARY.faults_fail(KINDS[kind], ctypes.c_long(at), error, is_short)
        outcome = None
        try:
            write_missing(path, "r", acknowledged.extend)
        except ExtractorError as failure:
            outcome = [type(failure).__name__, str(failure)]
        reached = LIBRARY.faults_seen() > at
        LIBRARY.faults_fail(0, ctypes.c_long(-1), 0, 0)
        told.write_text(json.dumps([outcome, acknowledged, reached]))

    code = exit_of(in_child(work))
    outcome, acknowledged, reached = json.loads(told.read_text()) if code == 0 else [["died", str(code)], [], True]
    wrong = examine(path, acknowledged)
    shutil.rmtree(path)
    return [*(outcome or ["none", ""]), wrong] if reached else None


def examine(path, acknowledged):
    """None when the store is whole and a second run finishes it, else what is wrong."""
    try:
        assert_whole(prepare_store(path, MANIFEST), acknowledged)
        write_missing(path, "again")
        assert_whole(Store.open(path, check=True), samples())
    except (AssertionError, ExtractorError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def count_operations(root, kind):
    path = prepare_store(root / "s", MANIFEST).path
    LIBRARY.faults_fail(KINDS[kind], ctypes.c_long(10**9), 0, 0)
    write_missing(path, "r")
    shutil.rmtree(path)
    return LIBRARY.faults_seen()


def main(root, kind, error, is_short, cases):
    """`cases` positions spread over the run; 0: all of them."""
    total = count_operations(Path(root), kind)
    step = total / cases if cases else 1
    positions = [int(step * n) for n in range(int(total / step))]
    results = [run_failing(Path(root), kind, at, getattr(errno, error), is_short) for at in positions]
    return [result for result in results if result is not None]


if __name__ == "__main__":
    os.environ["PYTHONWARNINGS"] = "ignore"
    json.dump(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])), sys.stdout)
