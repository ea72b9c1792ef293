"""The command: options, exit codes, what it prints."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from power import Survivors
from prepare_cases import chat, write_jsonl
from rich.console import Console

from extractor.cli import main
from extractor.errors import UsageError
from extractor.prepare import PrepareOptions, options
from extractor.prepare.show import show


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "data.jsonl", [chat("q", "a"), chat("q", "a"), chat("other", "answer")])


def command(*arguments: object) -> int:
    return main(["prepare", *map(str, arguments)])


def test_done(tmp_path: Path, data: Path, tiny_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(data, "--tokenizer", tiny_tokenizer_dir, "--out", tmp_path / "out") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["source", "read", "kept", "duplicate", "dropped", "rejected", "samples", "tokens", "trained"]
    assert lines[1] == ["data", "3", "2", "1", "0", "0", "2", "55", "9"]
    assert lines[2] == ["total", *lines[1][1:]]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["report.json", "samples.parquet"]


@pytest.mark.parametrize(
    ("files", "found"),
    [((), "an empty folder"), (("a", "b", "c", "d", "e", "config.json"), "a, b, c, config.json and 2 more")],
)
def test_a_folder_without_a_tokenizer(
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    files: tuple[str, ...],
    found: str,
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in files:
        (here / name).write_text("{}")
    monkeypatch.chdir(here)
    assert command(data, "--tokenizer", ".", "--out", tmp_path / "out") == 1
    said = capsys.readouterr().err
    assert said.startswith(f"extractor prepare: {here} holds no tokenizer: looked for tokenizer*, tokenization*.py, ")
    assert said.endswith(f"found {found}; pass the folder of the target model or its tokenizer with --tokenizer\n")


def test_without_rejects_there_is_no_list_of_them(
    tmp_path: Path, data: Path, tiny_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither an empty one, nor that of an earlier run, nor a word of it."""
    bad, empty, out = data.with_name("bad.jsonl"), data.with_name("empty.jsonl"), tmp_path / "out"
    bad.write_text('{"seq_len": 9}\n')
    empty.write_text("")
    assert command(bad, data, "--tokenizer", tiny_tokenizer_dir, "--out", out) == 3
    assert (out / "rejects.jsonl").exists()
    assert command(bad, "--tokenizer", tiny_tokenizer_dir, "--out", out) == 1
    assert (out / "failed-rejects.jsonl").exists()
    capsys.readouterr()
    assert command(empty, "--tokenizer", tiny_tokenizer_dir, "--out", out) == 1
    assert capsys.readouterr().err == (
        f"extractor prepare: no sample is left: there are no records in {empty}; pass files that hold some\n"
    )
    assert not (out / "failed-rejects.jsonl").exists()
    assert command(data, "--tokenizer", tiny_tokenizer_dir, "--out", out) == 0
    assert sorted(file.name for file in out.iterdir()) == ["report.json", "samples.parquet"]


def test_what_is_prepared_survives_a_power_cut(
    tmp_path: Path, data: Path, tiny_tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data.parent / "bad.jsonl").write_text('{"seq_len": 9}\n')
    power = Survivors(monkeypatch)
    for files, code, names in (
        ([data.parent / "bad.jsonl"], 1, {"failed-rejects.jsonl"}),
        ([data, data.parent / "bad.jsonl"], 3, {"samples.parquet", "report.json", "rejects.jsonl"}),
    ):
        assert command(*files, "--tokenizer", tiny_tokenizer_dir, "--out", tmp_path / "new" / "out") == code
        assert {file.name for file in (tmp_path / "new" / "out").iterdir()} == names
        assert power.lost(tmp_path / "new") == []


def test_rejects_give_exit_code_3_and_json(
    tmp_path: Path, data: Path, tiny_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with data.open("a") as file:
        file.write('{"seq_len": 9}\n')
    arguments = (data, "--tokenizer", tiny_tokenizer_dir, "--out", tmp_path / "out", "--json", "--train-on", "response")
    assert command(*arguments) == 3
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "report.json").read_text())
    assert printed["total"]["records"]["rejected"] == {"lengths_only": 1}
    assert printed["settings"]["train_on"] == ["response"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--max-length", "-1"], 2, "--max-length got -1; allowed are values from 1, or 0: no cap"),
        (["--overlong", "cut"], 2, "--overlong got 'cut'; allowed are truncate, drop, error"),
        (["--train-on", "prompt"], 2, "--train-on got 'prompt'; allowed are response, thinking, tool"),
        (["--train-on", ","], 2, "--train-on is empty"),
        (["--format", "csv"], 2, "--format got 'csv'; allowed are auto"),
        (["--turns", "first"], 2, "--turns got 'first'; allowed are all, last"),
        (["--tokenizer", "/nowhere"], 1, "tokenizer folder /nowhere does not exist"),
        (["--tokenizer", __file__], 1, f"tokenizer folder {__file__} is a file, not a folder"),
        (["--chat-template", "/nowhere"], 1, "chat template /nowhere can't be read"),
    ],
)
def test_errors(
    tmp_path: Path,
    data: Path,
    tiny_tokenizer_dir: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    assert command(data, "--tokenizer", tiny_tokenizer_dir, "--out", tmp_path / "out", *arguments) == code
    printed = capsys.readouterr()
    assert re.fullmatch(rf"extractor prepare: {re.escape(message)}.*\n", printed.err)
    assert printed.out == ""


def test_out_is_needed_to_write(data: Path, tiny_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(data, "--tokenizer", tiny_tokenizer_dir) == 2
    assert "--out is missing" in capsys.readouterr().err


def test_an_out_that_is_a_file(data: Path, tiny_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(data, "--tokenizer", tiny_tokenizer_dir, "--out", data) == 1
    assert f"{data} can't be written" in capsys.readouterr().err


def test_a_full_disk_leaves_nothing(
    tmp_path: Path,
    data: Path,
    tiny_tokenizer_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("extractor.prepare.spill.Buckets.append", full)
    assert command(data, "--tokenizer", tiny_tokenizer_dir, "--out", tmp_path / "out") == 1
    assert "no room in" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


def test_show_writes_nothing_and_colours_parts(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    records = [{"messages": []}, chat("question", "<think>hm</think>answer")]
    data = write_jsonl(tmp_path / "data.jsonl", records)
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=100)
    options = PrepareOptions(data=(str(data),), tokenizer=tiny_tokenizer_dir, out=tmp_path / "out")
    show(options, 5, console)
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert "\x1b[4;35m<think>hm</think>\x1b[0m\x1b[4;32manswer<|im_end|>\x1b[0m" in printed
    assert "\x1b[2m<|im_start|>user\x1b[0m\n\x1b[2mquestion<|im_end|>\x1b[0m" in printed
    assert "data/data.jsonl record 0 rejected: no_messages" in printed
    assert not (tmp_path / "out").exists()


def test_defaults_of_command_and_call_are_one(data: Path, tiny_tokenizer_dir: Path) -> None:
    import argparse

    from extractor.cli import prepare_command

    parser = argparse.ArgumentParser()
    prepare_command.add_arguments(parser)
    args = parser.parse_args([str(data), "--tokenizer", str(tiny_tokenizer_dir), "--out", "o"])
    parsed = prepare_command.options(args)
    defaults = {f.name: f.default for f in dataclasses.fields(PrepareOptions) if f.default is not dataclasses.MISSING}
    given = {name: getattr(parsed, name) for name in defaults if name != "progress"}
    given["train_on"] = tuple(sorted(given["train_on"]))
    assert given == {name: value for name, value in defaults.items() if name != "progress"}


def test_options_refuse_nonsense(data: Path, tiny_tokenizer_dir: Path) -> None:
    with pytest.raises(UsageError, match="there is no data"):
        PrepareOptions(data=(), tokenizer=tiny_tokenizer_dir, out=data)
    with pytest.raises(UsageError, match="--workers got -1"):
        PrepareOptions(data=("x",), tokenizer=tiny_tokenizer_dir, out=data, workers=-1)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("place", ["spill.Buckets.append", "merge.Merger.write", "run.write_json", "run.replace_all"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), OSError(errno.EFBIG, "large")])
def test_a_run_that_fails_leaves_the_earlier_files(
    tmp_path: Path,
    data: Path,
    tiny_tokenizer_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    error: BaseException,
) -> None:
    arguments = ("--tokenizer", tiny_tokenizer_dir, "--out", tmp_path / "out")
    assert command(data, *arguments) == 0
    before = files(tmp_path / "out")

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"extractor.prepare.{place}", fail)
        more = write_jsonl(tmp_path / "more.jsonl", [chat("new", "data")])
        assert command(more, *arguments) == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert files(tmp_path / "out") == before
    assert command(more, *arguments) == 0
    assert files(tmp_path / "out")["samples.parquet"] != before["samples.parquet"]


def test_a_limit_on_file_sizes_is_named(tmp_path: Path, data: Path, tiny_tokenizer_dir: Path) -> None:
    """In a process of its own: the limit holds for all of it."""
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); "
    limited += "from extractor.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["prepare", str(data), "--tokenizer", str(tiny_tokenizer_dir), "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-B", "-c", limited, *arguments], capture_output=True, text=True)
    assert done.returncode == 1
    assert "larger than this process may write; raise the limit (`ulimit -f`)" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_input_that_cannot_be_read_is_not_blamed_on_out(
    tmp_path: Path, data: Path, tiny_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(data))

    monkeypatch.setattr("extractor.prepare.run._bucket_count", forbidden)
    assert command(data, "--tokenizer", tiny_tokenizer_dir, "--out", tmp_path / "out") == 1
    assert f"{data} can't be read (Permission denied)" in capsys.readouterr().err


def test_ids_without_a_mask_are_counted_and_said(
    tmp_path: Path, tiny_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"input_ids": [5, 6, 7]}, {"input_ids": [5, 6, 8]}, {"input_ids": [5, 6], "loss_mask": [0, 1]}]
    ids = write_jsonl(tmp_path / "ids.jsonl", records)
    assert command(ids, "--tokenizer", tiny_tokenizer_dir, "--out", tmp_path / "out") == 0
    assert (
        "note: ids without loss_mask, segments or turns that the tokenizer knows in 2 records"
        in capsys.readouterr().err
    )
    assert json.loads((tmp_path / "out" / "report.json").read_text())["total"]["repairs"] == {"mask_assumed": 2}
    masked = write_jsonl(tmp_path / "masked.jsonl", [records[2], chat("q", "a")])
    assert command(masked, "--tokenizer", tiny_tokenizer_dir, "--out", tmp_path / "out") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("record", "detail"),
    [
        (None, "a record is null, expected an object"),
        ({"messages": None}, "the list of messages is null"),
        ({"prompt": ["x"], "response": 3}, "response is a number, expected text"),
        (chat("q", "a<|im_start|>b"), "<|im_start|> stands in the text of an assistant turn"),
        (chat(None, "a"), "the content of a user turn is null"),
        ({**chat("q", "a"), "tools": [None]}, "a declaration is null, expected an object"),
    ],
)
def test_reasons_are_in_the_words_of_json(
    tmp_path: Path, tiny_tokenizer_dir: Path, record: object, detail: str
) -> None:
    data = write_jsonl(tmp_path / "d.jsonl", [record, chat("q", "a")])
    assert command(data, "--tokenizer", tiny_tokenizer_dir, "--out", tmp_path / "out") == 3
    assert detail in json.loads((tmp_path / "out" / "rejects.jsonl").read_text())["detail"]


def test_help_names_the_values_of_each_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "--help"]) == 0
    said = capsys.readouterr().out.split("options:")[1]
    for choices in (options.OVERLONG, options.TURNS, options.LACKING, options.FORMATS, options.TRAINABLE):
        assert [name for name in choices if not re.search(rf"\b{name}\b", said)] == []
