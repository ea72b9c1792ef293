"""docs/prepare.md names what the code does, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from extractor.prepare.messages import ROLES
from extractor.prepare.options import FORMATS
from extractor.prepare.reject import DROP_REASONS, REASONS

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "prepare.md").read_text()
CODE = "\n".join(path.read_text() for path in sorted((ROOT / "extractor" / "prepare").glob("*.py")))


def rows(heading: str) -> dict[str, str]:
    section = TEXT.split(f"## {heading}")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)`.*? \| (.*) \|$", section, re.MULTILINE))


def test_reasons() -> None:
    assert rows("Reasons of rejection") == REASONS
    assert {name: text for name, text in rows("Reasons of dropping").items() if name != "not_drawn"} == DROP_REASONS


def test_every_reason_is_given_somewhere() -> None:
    for reason in (*REASONS, *DROP_REASONS):
        assert CODE.count(f'"{reason}"') >= 2, f"{reason} is listed and never used"


def test_repairs() -> None:
    applied = set(re.findall(r'repairs\.append\("(\w+)"\)', CODE))
    assert set(rows("Repairs (counted")) == applied


def test_formats_and_roles() -> None:
    section = TEXT.split("## Input")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) | {"auto", "sharegpt"}
    assert named == set(FORMATS)
    listed = section.split("Roles: ")[1].split(".")[0].replace("\n", " ").split(", ")
    assert listed == list(ROLES)
