"""How a command ends when its output is closed or full, and when the system refuses something."""

import errno
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from store_samples import a_manifest, rows_of, write_samples

from extractor.cli import main, streams
from extractor.cli.system_errors import describe
from extractor.demo import model as demo_model
from extractor.errors import StoreError
from extractor.exports import folder
from extractor.exports.format import Format, Record, pack_safetensors, pack_torch
from extractor.exports.ledger import Ledger
from extractor.store import prepare_store

ROOT = Path(__file__).parent.parent
ASCII = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Its list of samples is larger than any buffer between it and a pipe's reader."""
    path = prepare_store(tmp_path_factory.mktemp("endings") / "s", manifest := a_manifest()).path
    rows = rows_of(0, 1, manifest)
    write_samples(path, {f"sample-{i:04}-{'x' * 60}": rows for i in range(1500)})
    return path


def shell(line, **env):
    """(exit code, stderr, stdout) of `line`; $E is the command."""
    env = {"PATH": os.environ["PATH"], "E": f"{sys.executable} -m extractor", **env}
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=env, capture_output=True, text=True)
    return done.returncode, done.stderr, done.stdout


@pytest.mark.parametrize("options", ["--list --json", "--list", "--json"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_ends_it_quietly(store, options, unbuffered):
    line = f"$E inspect {store} {options} | true; exit ${{PIPESTATUS[0]}}"
    assert shell(line, PYTHONUNBUFFERED=unbuffered) == (streams.SIGPIPE_EXIT, "", "")


@pytest.mark.parametrize(
    "command", ["inspect {} --list", "inspect {} --json", "verify {} --quick", "bench --list", "--help"]
)
def test_a_full_disk_under_stdout_is_one_line(store, command):
    code, said, _ = shell(f"$E {command.format(store)} > /dev/full")
    assert code == 1
    assert "stdout: No space left on device; free some space" in said
    assert len(said.splitlines()) == 1


def test_closed_streams_are_as_good_as_none(store):
    assert shell(f"$E inspect {store} --json >&-") == (0, "", "")
    assert shell(f"$E verify {store} <&- >&- 2>&-") == (0, "", "")
    assert shell(f"$E inspect {store}/nothing >&-")[0] == 1


def test_an_error_that_can_not_be_told_is_still_an_error(store):
    assert shell(f"$E inspect {store}/nothing 2>/dev/full")[0] == 1


def test_no_descriptor_of_a_closed_stream_is_left_for_files(store):
    code = "import os; from extractor.cli import streams; streams.prepare_streams(); print(os.open('/dev/null', 0) > 2)"
    line = f"{sys.executable} -c \"{code}; import sys; sys.exit(os.open('/dev/null', 0) <= 2)\" <&- >&- 2>&-"
    assert shell(line)[0] == 0


def test_a_terminal_of_ascii_gets_escapes(tmp_path):
    manifest = a_manifest()
    path = prepare_store(tmp_path / "s", manifest).path
    write_samples(path, {"h\u00e4\u2192": rows_of(0, 2, manifest)})
    code, said, printed = shell(f"$E inspect {path} --list", **ASCII)
    assert (code, said) == (0, "")
    assert "h\\xe4\\u2192" in printed


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/a/b"), "/a/b: Permission denied; get the permission"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x.png"), "x.png: No such file"),
        (OSError(errno.EFBIG, "File too large", "/d"), "`ulimit -f`"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device; free some space"),
        (OSError("a reason\nof two lines"), "a reason of two lines; correct the cause"),
        (OSError(errno.EXDEV, "Invalid cross-device link", "/a", None, "/b"), "/a -> /b: Invalid cross-device link"),
    ],
)
def test_a_refusal_of_the_system_says_what_where_and_what_to_do(error, said, monkeypatch, capsys):
    def refuse(args):
        raise error

    monkeypatch.setattr("extractor.cli.inspect_command.run", refuse)
    assert main(["inspect", "s"]) == 1
    assert said in describe(error)
    assert capsys.readouterr().err == f"extractor inspect: {describe(error)}\n"


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("x"), RuntimeError("y")])
def test_bugs_keep_their_tracebacks(error, monkeypatch):
    def fail(args):
        raise error

    monkeypatch.setattr("extractor.cli.inspect_command.run", fail)
    with pytest.raises(type(error)):
        main(["inspect", "s"])


def test_another_closed_pipe_is_not_taken_for_ours(monkeypatch, capsys):
    def fail(args):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("extractor.cli.inspect_command.run", fail)
    assert main(["inspect", "s"]) == 1
    assert "Broken pipe" in capsys.readouterr().err


def test_a_warning_is_one_line_without_the_codes_place():
    program = "import warnings; from extractor.cli import main; main(['--version']); warnings.warn('room is short')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "extractor: room is short\n"


def test_wrong_usage_is_one_line(capsys):
    for line in ("extract x --model y --out z --dtype float32", "inspect", "nope", "export s --to x --out o"):
        assert main(line.split()) == 2
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1
        assert "--help" in said


@contextmanager
def small_files():
    """No file may grow beyond 4 KiB, the one that pytest's own words go to among them: not longer than for a call."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("pack", [pack_torch, pack_safetensors])
def test_an_export_that_can_not_write_says_so(pack, tmp_path):
    form = Format(
        name="f", path=lambda n, i: Path(f"{i}.x"), content=lambda record: {"states": record.states}, pack=pack
    )
    manifest = a_manifest()
    states = torch.zeros(400, *manifest.row_shape, dtype=torch.float16)
    ones = torch.ones(400, dtype=torch.int64)
    with small_files(), pytest.raises(StoreError, match=r"s7.x can't be written: .*ulimit -f"):
        folder.write(
            form, Record("s7", ones, ones, states, states, None, manifest), tmp_path, Path("s7.x"), Ledger(tmp_path)
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", ["inspect {}", "verify {}", "compact {}", "gather {}", "export {} --to specforge --out o"]
)
def test_a_file_in_place_of_a_store_is_named_as_one(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "samples.jsonl"
    file.write_text("{}")
    assert main(command.format(file).split()) == 1
    assert f"{file} is a file, and a store is a folder" in capsys.readouterr().err


def test_a_file_in_place_of_a_model_is_named_as_one(tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text("{}")
    assert main(["plan", str(tmp_path), "--model", str(file)]) == 1
    assert f"{file} is a file; pass the Hugging Face model folder" in capsys.readouterr().err


@pytest.mark.parametrize("is_there", [False, True])
def test_a_reference_that_is_no_model_names_no_option_of_another_command(store, is_there, tmp_path, capsys):
    folder = tmp_path / "none"
    if is_there:
        folder.mkdir()
    assert main(["verify", str(store), "--quick", "--reference", str(folder)]) == 1
    said = capsys.readouterr().err
    assert f"{folder} {'has no config.json' if is_there else 'does not exist'}" in said
    assert "--model" not in said


def test_an_unknown_sample_brings_the_command_that_lists_them(store, capsys):
    assert main(["inspect", str(store), "nope"]) == 1
    assert f"`extractor inspect {store} --list`" in capsys.readouterr().err
    assert main(["inspect", str(store), "--list"]) == 0


def test_a_demo_model_that_can_not_be_written_says_so(tmp_path, monkeypatch):
    def fail(source, target):
        target.mkdir(parents=True)
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo_model, "_package_dir", lambda: tmp_path)
    monkeypatch.setattr(demo_model, "_dequantize", fail)
    with pytest.raises(StoreError, match=r"No space left on device.*XDG_CACHE_HOME"):
        demo_model.demo_model_dir()
    assert not list((tmp_path / "hidden-state-extractor").iterdir())
