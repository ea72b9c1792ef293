"""What is built and shipped: sdist, wheels with and without compiled code, an editable install, no shadowed package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("CMakeLists.txt", "MANIFEST.in", "bench", "csrc", "extractor", "kernels", "pyproject.toml", "setup.py")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
needs_compiler = pytest.mark.skipif(
    shutil.which("cmake") is None or not (shutil.which("c++") or shutil.which("g++")),
    reason="cmake or a C++ compiler is not installed here",
)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    """The project's sources without anything that was built in the checkout."""
    folder = tmp_path_factory.mktemp("project")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, symlinks=True, ignore=LEFT_OUT)
        else:
            shutil.copy(ROOT / part, folder / part)
    return folder


@pytest.fixture
def project(pristine, tmp_path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "project", symlinks=True))


def run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "EXTRACTOR_NATIVE": "auto", "EXTRACTOR_CUDA": "OFF", **variables}
    environment.pop("PYTHONPATH", None)  # another test may have put the checkout there
    return subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)


def pip(project: Path, *arguments: str, **variables: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = run(command, project, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wheel(project: Path, **variables: str) -> tuple[Path, set[str]]:
    pip(project, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", "dist", ".", **variables)
    (path,) = (project / "dist").glob("*.whl")
    return path, set(zipfile.ZipFile(path).namelist())


def sources(folder: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py") if "kernels" not in path.parts[-2:-1]}


def test_kernels_is_no_package_of_its_own():
    """Hugging Face publishes `kernels`, which transformers imports: ours must not be found in its place."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert (ROOT / "extractor" / "kernels").is_symlink()
    program = "import importlib.util as u; spec = u.find_spec('kernels'); print(spec and spec.origin)"
    found = run([sys.executable, "-c", program], ROOT).stdout.strip()
    assert not found.startswith(str(ROOT))
    assert found == "None" or "site-packages" in found  # a namespace without a file, or the real one


def test_a_wheel_without_native_code_runs_anywhere_and_holds_every_module(project):
    path, names = wheel(project, EXTRACTOR_NATIVE="off")
    assert path.name.endswith("-py3-none-any.whl")
    assert not [name for name in names if name.endswith(".so")]
    assert sources("extractor") <= names
    assert {f"extractor/kernels/{file.name}" for file in (ROOT / "kernels").glob("*.py")} <= names
    assert not [name for name in names if name.startswith("kernels/")]


@needs_compiler
def test_a_wheel_with_native_code_serves_every_python_of_its_platform(project):
    path, names = wheel(project, EXTRACTOR_NATIVE="require")
    assert "-py3-none-" in path.name
    assert not path.name.endswith("-any.whl")
    assert [name for name in names if name.endswith(".so")] == ["extractor/libextractor_cpu.so"]


@needs_compiler
def test_an_editable_install_builds_beside_the_sources(project, tmp_path):
    prefix = tmp_path / "prefix"
    # pip would else take the project out of the environment that these tests run in.
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--ignore-installed", "--prefix", str(prefix)]
    before = pip(tmp_path, "list")
    pip(project, "install", *options, "-e", ".", EXTRACTOR_NATIVE="require")
    assert pip(tmp_path, "list") == before
    assert (project / "extractor" / "libextractor_cpu.so").exists()
    (folder,) = prefix.rglob("site-packages")
    program = (
        # Libraries of the environment, but not the project that it has installed itself.
        f"import site, sys; site.addsitedir({str(folder)!r}); sys.path.append({sysconfig.get_paths()['purelib']!r})\n"
        "from extractor import native; from extractor.kernels import gather_ref\n"
        "print(native.load('cpu').path, gather_ref.__file__)"
    )
    done = run([sys.executable, "-S", "-c", program], tmp_path)
    assert done.returncode == 0, done.stderr
    path, file = done.stdout.split()
    assert path in ("avx2", "portable")
    assert Path(file).resolve() == (project / "kernels" / "gather_ref.py").resolve()


def test_the_sdist_holds_what_a_build_needs(project):
    done = run([sys.executable, "setup.py", "-q", "sdist"], project)
    assert done.returncode == 0, done.stderr
    (path,) = (project / "dist").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"CMakeLists.txt", "setup.py", "pyproject.toml"} <= names
    assert {f"csrc/{file.name}" for file in (ROOT / "csrc").iterdir()} <= names
    assert {f"kernels/{file.name}" for file in (ROOT / "kernels").glob("*.py")} <= names
    assert not [name for name in names if name.startswith("extractor/kernels/") or name.endswith(".so")]


def without_cmake(tmp_path: Path) -> dict[str, str]:
    empty = tmp_path / "empty"
    empty.mkdir()
    return {"PATH": str(empty)}


def test_without_cmake_the_build_goes_on_in_pure_python_and_says_so(project, tmp_path):
    done = run([sys.executable, "setup.py", "-q", "build_native"], project, **without_cmake(tmp_path))
    assert done.returncode == 0
    assert "cmake was not found: pure Python, gather_rows runs on Numba" in done.stderr + done.stdout
    assert not list((project / "extractor").glob("*.so"))


def test_without_cmake_a_required_build_fails(project, tmp_path):
    variables = {**without_cmake(tmp_path), "EXTRACTOR_NATIVE": "require"}
    done = run([sys.executable, "setup.py", "-q", "build_native"], project, **variables)
    assert done.returncode == 1
    assert "the native libraries can't be built: cmake was not found" in done.stderr


@needs_compiler
def test_a_broken_compiler_leaves_no_old_library_behind(project, tmp_path):
    """A library of an earlier build must not pass for this one's."""
    (project / "extractor" / "libextractor_cpu.so").write_bytes(b"from an earlier build")
    done = run([sys.executable, "setup.py", "-q", "build_native"], project, CXX=str(tmp_path / "no-compiler"))
    assert done.returncode == 0
    assert "pure Python, gather_rows runs on Numba" in done.stderr + done.stdout
    assert not list((project / "extractor").glob("*.so"))


@pytest.mark.parametrize(("variable", "value"), [("EXTRACTOR_NATIVE", "yes"), ("EXTRACTOR_CUDA", "on")])
def test_an_unknown_choice_is_refused(project, variable, value):
    done = run([sys.executable, "setup.py", "-q", "build_native"], project, **{variable: value})
    assert done.returncode == 1
    assert f"{variable} is '{value}'; allowed are" in done.stderr
