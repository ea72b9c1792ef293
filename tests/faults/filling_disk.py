"""Run under full_disk.c: a command again and again, the disk below its output folder full from each operation on.

Prints one result for each: [exit code, what the command said, the files that it left, how many operations it came to].
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import shutil
import sys
import traceback
from pathlib import Path

from children import exit_of, in_child

from extractor.cli import main as extractor

LIBRARY = ctypes.CDLL(None)


def run_full(command, out, full_from):
    """The result of `command` with the disk full from operation number `full_from` on."""
    said = out.with_name("said")

    def work():
        with said.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        LIBRARY.full_disk(str(out).encode(), ctypes.c_long(full_from))
        try:
            code = extractor(command)
        except Exception:
            traceback.print_exc()
            code = 99
        sys.stdout.flush()
        operations = LIBRARY.full_disk_seen()
        LIBRARY.full_disk(b"", ctypes.c_long(0))
        out.with_name("operations").write_text(str(operations))
        os._exit(code)

    code = exit_of(in_child(work))
    left = sorted(str(path.relative_to(out)) for path in out.rglob("*")) if out.exists() else []
    return [code, said.read_text(), left, int(out.with_name("operations").read_text())]


def main(out, *command):
    out = Path(out)
    results = []
    while not results or results[-1][3] > len(results) - 1:
        shutil.rmtree(out, ignore_errors=True)
        results.append(run_full([*command, "--out", str(out)], out, len(results)))
    return results


if __name__ == "__main__":
    # What the commands load, once instead of in each child.
    for name in ("extractor.prepare.run", "transformers.models.auto.tokenization_auto", "extractor.exports.job"):
        importlib.import_module(name)
    if importlib.util.find_spec("datasets") and "speculators" in sys.argv:
        importlib.import_module("datasets")
    json.dump(main(*sys.argv[1:]), sys.stdout)
