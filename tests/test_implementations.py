"""The choice of an implementation: the best that is there, said aloud; the one that was asked for, or an error."""

from __future__ import annotations

import logging

import pytest
import torch
from gather_cases import native_library

from extractor import implementations, native
from extractor.errors import UsageError
from extractor.implementations import implementation
from extractor.native import NativeMissingError


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("EXTRACTOR_IMPL", raising=False)
    implementations._choose.cache_clear()
    yield
    implementations._choose.cache_clear()


@pytest.fixture
def without_libraries(monkeypatch):
    def load(name: str) -> native.NativeLibrary:
        raise NativeMissingError(f"libextractor_{name}.so was not built")

    monkeypatch.setattr(implementations, "load", load)


def test_compiled_code_comes_first_and_is_named_once(caplog):
    native_library("cpu")
    with caplog.at_level(logging.INFO, "extractor.ops"):
        assert implementation("cpu").name == "cpp"
        assert implementation("cpu").name == "cpp"
    (message,) = caplog.messages
    assert message.startswith("gather_rows on cpu: cpp (libextractor_cpu.so, ")


@pytest.mark.usefixtures("without_libraries")
def test_without_libraries_numba_and_triton_take_over_and_say_why(caplog):
    pytest.importorskip("triton")
    with caplog.at_level(logging.WARNING, "extractor.ops"):
        assert implementation("cpu").name == "numba"
        assert implementation("cuda").name == "triton"
    assert caplog.messages == [
        "gather_rows on cpu: numba (compiled on first use); not cpp: libextractor_cpu.so was not built",
        "gather_rows on cuda: triton (compiled on first use); not cuda: libextractor_cuda.so was not built",
    ]


@pytest.mark.usefixtures("without_libraries")
def test_with_nothing_else_torch_remains(monkeypatch):
    monkeypatch.setattr(implementations.importlib.util, "find_spec", lambda name: None)
    assert implementation("cpu").name == "torch"
    assert implementation("cuda").name == "torch"


@pytest.mark.usefixtures("without_libraries")
def test_absence_of_what_was_asked_for_is_an_error(monkeypatch):
    monkeypatch.setenv("EXTRACTOR_IMPL", "cpp")
    with pytest.raises(UsageError, match=r"EXTRACTOR_IMPL=cpp, but cpp: libextractor_cpu.so was not built; unset it"):
        implementation("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test misses")
def test_the_cuda_library_is_not_chosen_without_a_device(monkeypatch):
    native_library("cuda")
    monkeypatch.setenv("EXTRACTOR_IMPL", "cuda")
    with pytest.raises(UsageError, match="cuda: libextractor_cuda.so finds no device of compute capability 8.0"):
        implementation("cuda")


@pytest.mark.parametrize(
    ("wanted", "device", "message"),
    [
        ("magic", "cpu", "'magic'; allowed are cpp, cuda, numba, torch, triton"),
        ("cuda", "cpu", "nothing for tensors on the cpu; allowed there are cpp, numba, torch"),
        ("", "mps", "tensors are on 'mps'; gather_rows runs on cuda and cpu"),
    ],
)
def test_wrong_wishes_are_refused(monkeypatch, wanted, device, message):
    monkeypatch.setenv("EXTRACTOR_IMPL", wanted)
    with pytest.raises(UsageError, match=message):
        implementation(device)


def test_one_wish_for_each_kind_of_device(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("EXTRACTOR_IMPL", "triton,numba")
    assert implementation("cpu").name == "numba"
    assert implementation("cuda").name == "triton"
