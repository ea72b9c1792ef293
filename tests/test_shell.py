"""What a message tells to run can be pasted into a shell."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from store_cases import a_store

from extractor.shell import shell_command

ROOT = Path(__file__).resolve().parents[1] / "extractor"
# Numbers and a subcommand, which need no quotes.
PLAIN = {"info.max_positions", "','.join(map(str, ids))", "name"}


def test_words_come_back_as_they_were():
    words = ("extractor", "verify", Path("/data/my store's"), "--samples", 3)
    assert shlex.split(shell_command(*words)) == [str(word) for word in words]


def bare_values(source):
    """Expressions that an f-string puts between "`extractor " and the next backtick without shell_command."""
    for node in ast.walk(ast.parse(source)):
        said = ""
        for part in node.values if isinstance(node, ast.JoinedStr) else ():
            if isinstance(part, ast.Constant):
                said += str(part.value)
            elif re.search(r"`extractor [^`]*$", said):
                yield ast.unparse(part.value)


def test_the_search_finds_a_bare_path():
    assert list(bare_values('f"run `extractor gather " f"{store} --move`, then {x}"')) == ["store"]


def test_no_command_in_a_message_holds_a_bare_path():
    found = {
        value: str(file)
        for file in ROOT.rglob("*.py")
        if "kernels" not in file.parts
        for value in bare_values(file.read_text())
    }
    assert {value: file for value, file in found.items() if value not in PLAIN} == {}


def test_a_path_with_spaces(tmp_path):
    store = a_store(tmp_path / "my store's", {"a": 3})
    with pytest.raises(KeyError) as error:
        store["b"]
    command = re.search(r"`(extractor inspect .*)`", str(error.value))[1]
    assert shlex.split(command) == ["extractor", "inspect", str(store.path), "--list"]
