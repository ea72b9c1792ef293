"""How bench/gpu_check.py comes by the CUDA library: where nvcc is looked for, what a machine without one is told."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
import torch

from extractor.bench import gpu_build, gpu_check
from extractor.bench.gpu_build import UnusableError
from extractor.native import NativeLibrary


def a_compiler(folder: Path, script: str = "exit 0") -> Path:
    """An executable `bin/nvcc` in `folder`."""
    path = folder / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No nvcc anywhere; a library that is not built, of an H200."""
    for variable in ("CUDACXX", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setattr(gpu_build, "DEFAULT_TOOLKIT", tmp_path / "default")
    monkeypatch.setattr(gpu_build, "LIBRARY", tmp_path / "libextractor_cuda.so")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    return tmp_path


def test_nvcc_is_found_wherever_it_is(bare, monkeypatch):
    """Each place in turn, the least preferred first: each later one goes before all earlier ones."""
    default = a_compiler(bare / "default")
    assert gpu_build.nvcc() == [str(default)]
    on_path = a_compiler(bare / "path")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert gpu_build.nvcc() == ["nvcc"]
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.setenv(variable, str(bare / variable))
        assert gpu_build.nvcc() == ["nvcc"] if variable == "CUDA_PATH" else [str(bare / "CUDA_PATH" / "bin" / "nvcc")]
        path = a_compiler(bare / variable)
        assert gpu_build.nvcc() == [str(path)]
    named = a_compiler(bare / "named")
    monkeypatch.setenv("CUDACXX", f"{named} -ccbin g++-12")
    assert gpu_build.nvcc() == [str(named), "-ccbin", "g++-12"]


def test_without_nvcc_every_place_is_named(bare, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    with pytest.raises(UnusableError) as caught:
        gpu_build.library()
    for part in ("libextractor_cuda.so is not built", "/opt/cuda/bin/nvcc", str(bare / "default"), "set CUDACXX"):
        assert part in str(caught.value)


def test_a_failed_build_says_what_the_compiler_said(bare):
    a_compiler(bare / "default", "echo nvcc fatal: Unsupported gpu architecture; exit 1")
    with pytest.raises(UnusableError, match=r"can't build the CUDA library: nvcc fatal.*12\.8"):
        gpu_build.library()
    assert not list(bare.glob("*.so"))
    assert sorted(path.name for path in bare.iterdir()) == ["default"]  # nothing temporary stays


def test_an_nvcc_that_does_not_know_the_gpu_builds_for_the_driver_to_compile(bare, monkeypatch):
    out = f"{bare}/said"
    a_compiler(
        bare / "default", f'echo "$@" >> {out}; case "$*" in *sm_90*) exit 1;; esac; for a; do :; done; : > "$a"'
    )
    monkeypatch.setenv("PATH", os.defpath)
    gpu_build.build()
    first, second = Path(out).read_text().splitlines()
    assert "-arch=sm_90" in first
    assert "code=compute_80" in second
    assert gpu_build.LIBRARY.exists()


def test_a_library_older_than_its_sources_is_built_again_or_used_aloud(bare, monkeypatch, capsys):
    gpu_build.LIBRARY.touch()
    os.utime(gpu_build.LIBRARY, (0, 0))
    monkeypatch.setattr(gpu_build, "load", lambda name: UsableLibrary(1))
    assert gpu_build.library().count == 1
    assert "is used as it is: " in capsys.readouterr().out
    monkeypatch.setenv("PATH", os.defpath)
    a_compiler(bare / "default", 'for a; do :; done; echo new > "$a"')
    gpu_build.library()
    assert gpu_build.LIBRARY.read_text() == "new\n"


class UsableLibrary:
    def __init__(self, count: int) -> None:
        self.count = count

    def usable_devices(self) -> int:
        return self.count


def test_a_driver_too_old_for_the_library_ends_the_check_with_2(bare, monkeypatch, capsys):
    """Otherwise the first gather fails with a traceback and 1, the code for wrong bits."""
    gpu_build.LIBRARY.touch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_build, "load", lambda name: UsableLibrary(0))
    assert gpu_check.main(["--out", str(bare / "x.json")]) == 2
    said = capsys.readouterr().err
    for part in ("finds no device that it can drive", "NVIDIA H200", "capability 9.0", "update the driver", "CUDACXX"):
        assert part in said


def test_a_library_that_does_not_load_ends_the_check_with_2(bare, monkeypatch, capsys):
    gpu_build.LIBRARY.write_text("not a library")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_build, "load", lambda name: NativeLibrary(gpu_build.LIBRARY))
    assert gpu_check.main([]) == 2
    assert "does not load" in capsys.readouterr().err


def test_the_drivers_version(monkeypatch):
    assert gpu_build.driver_version("no-such-library.so") == "unknown"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed here")
def test_the_real_nvcc_builds_what_loads(monkeypatch, tmp_path):
    """For the H200, and the way round for a GPU that this nvcc does not know."""
    for capability in ((9, 0), (99, 9)):
        monkeypatch.setattr(gpu_build, "LIBRARY", tmp_path / f"lib{capability[0]}.so")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
        gpu_build.build()
        assert NativeLibrary(gpu_build.LIBRARY).path == "cuda"
