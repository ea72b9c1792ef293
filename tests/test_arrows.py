"""Who may import whom. Imports are parsed, so that one inside a function counts too."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = [
    *sorted(f for f in (ROOT / "extractor").rglob("*.py") if "kernels" not in f.relative_to(ROOT).parts),
    *sorted((ROOT / "kernels").glob("*.py")),
]


def _imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _importers(package: str) -> set[str]:
    return {
        str(file.relative_to(ROOT))
        for file in FILES
        if any(name == package or name.startswith(package + ".") for name in _imports(file))
    }


# package -> where it may be named (prefixes of paths)
HOMES = {
    "vllm": ["extractor/engines/vllm/"],
    "lmdb": ["extractor/store/"],
    "triton": ["kernels/"],
    "blosc2": ["extractor/store/"],
    "numba": ["extractor/jit.py"],
    "extractor.cli": ["extractor/cli/", "extractor/__main__.py", "extractor/demo/run.py"],
}


@pytest.mark.parametrize("package", HOMES)
def test_a_package_stays_in_its_home(package):
    importers = _importers(package)
    assert importers, f"nothing imports {package}: this test checks nothing"
    strays = [path for path in importers if not any(path.startswith(home) for home in HOMES[package])]
    assert strays == []


# module -> what it may import of ours
ARROWS = {
    "extractor/errors.py": set(),
    "extractor/layers.py": {"errors"},
    "extractor/paths.py": set(),
    "extractor/ring_size.py": set(),
    "extractor/jit.py": {"llvmlite_limits"},
    "extractor/config.py": {"errors", "paths"},
    "extractor/record.py": {"errors"},
    "extractor/packing.py": {"errors", "jit"},
    "extractor/fidelity.py": set(),
    "extractor/model_info.py": {"errors"},
    "extractor/sizes.py": set(),
    "extractor/sample_rows.py": {"errors", "sizes"},
    "extractor/samples.py": {"errors", "sample_rows"},
}


@pytest.mark.parametrize("path", ARROWS)
def test_the_lower_modules_know_nothing_of_the_upper(path):
    ours = {name.split(".")[1] for name in _imports(ROOT / path) if name.startswith("extractor.")}
    assert ours <= ARROWS[path]


@pytest.mark.parametrize("folder", ["extractor/store", "extractor/loader", "extractor/prepare", "extractor/budget"])
def test_engines_are_out_of_reach(folder):
    for file in FILES:
        if str(file.relative_to(ROOT)).startswith(folder):
            assert not [name for name in _imports(file) if name.startswith("extractor.engines")], file


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("extractor.store", ["torch", "vllm", "transformers", "triton", "numba"]),
        ("extractor.cli", ["torch", "vllm", "transformers", "triton", "numba", "lmdb", "ray"]),
        ("extractor", ["torch", "lmdb", "numpy"]),
    ],
)
def test_light_modules_stay_light(module, absent):
    code = f"import sys, {module}\nprint([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_of_every_command_loads_nothing_heavy():
    code = (
        "import sys; from extractor.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([n for n in ('torch', 'vllm', 'transformers', 'numba') if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    for command in ("prepare", "plan", "extract", "inspect", "verify", "export", "remove", "demo"):
        assert f"\n    {command} " in done.stdout
