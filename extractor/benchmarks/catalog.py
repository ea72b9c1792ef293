"""Which benchmarks there are: the files of `bench/` that hold a pytest-benchmark test, one a question."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import extractor
from extractor.errors import UsageError


def folder() -> Path:
    """`bench/` of a checkout, or the same files as a wheel installs them. Raises UsageError when neither is there."""
    found = Path(extractor.__file__).resolve().parent / "bench"
    if not found.is_dir():
        raise UsageError(
            f"the benchmarks are missing: there is no folder {found}; install the package again, or run from a checkout"
        )
    return found.resolve()


def questions() -> dict[str, str]:
    """Name -> the question, which is the first line of the file's docstring."""
    found = {}
    for file in sorted(folder().glob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in tree.body):
            found[file.stem] = (ast.get_docstring(tree) or file.stem).splitlines()[0]
    return found


def chosen(names: Sequence[str]) -> dict[str, str]:
    """Those asked for, in the order asked; all for none. Raises UsageError for a name that does not exist."""
    known = questions()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(known)}")
    return {name: known[name] for name in dict.fromkeys(names)} if names else known
