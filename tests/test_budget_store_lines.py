"""How much a plan says of other stores: no more than the question whether the job fits needs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group
from store_cases import a_store, many

from extractor.budget.room import RoomReport, StoreRow
from extractor.budget.store_lines import store_lines
from extractor.budget.verdict import FITS, judge
from extractor.cli import main
from extractor.disk import DiskSpace


def a_row(number: int, superseded: bool, size: int = 1 << 30) -> StoreRow:
    return StoreRow(
        path=Path(f"/data/s{number:03}"),
        model="m",
        layer_ids=(2,),
        samples=5,
        tokens=9,
        disk_bytes=size,
        freed_bytes=size,
        written="2026-01-01",
        superseded="older" if superseded else "",
        in_use="",
        problem="",
    )


def a_room(rows: list[StoreRow], need: int, free: int, searched_all: bool = True) -> RoomReport:
    return RoomReport(
        out=Path("/data/out"),
        space=DiskSpace(total_bytes=free, free_bytes=free, reserved_bytes=0, quota_left_bytes=None),
        stored_samples=0,
        stored_tokens=0,
        verdict=judge(need, free, [(str(row.path), row.freed_bytes) for row in rows if row.can_go]),
        stores=tuple(rows),
        searched_all=searched_all,
    )


def printed(room: RoomReport, every_store: bool = False) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(Group(*store_lines(room, every_store)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().strip()


ROWS = [a_row(i, superseded=i % 3 == 0) for i in range(60)]  # 20 superseded


def test_a_job_that_fits_with_room_to_spare_needs_one_line() -> None:
    assert printed(a_room(ROWS, need=1, free=1000, searched_all=False)) == (
        "60 stores on the same filesystem, 60.0 GiB; removing the 20 that look superseded frees 20.0 GiB "
        "(--stores or --json lists them)"
    )
    assert printed(a_room(ROWS[1:2], 1, 1000)) == (
        "1 store on the same filesystem, 1.0 GiB (--stores or --json lists them)"
    )
    assert printed(a_room([], need=1, free=1000)) == ""


def test_a_job_that_just_fits_shows_ten_superseded_first() -> None:
    text = printed(a_room(ROWS, need=950, free=1000))
    assert [f"s{i:03}" in text for i in range(60)] == [i % 3 == 0 and i < 30 for i in range(60)]
    assert "50 other stores on the same filesystem, 50.0 GiB; removing the 10 that look superseded" in text


@pytest.mark.parametrize("need", [1001, 1000 + (21 << 30)])
def test_where_room_is_needed_all_that_could_go_is_shown(need: int) -> None:
    text = printed(a_room(ROWS, need=need, free=1000, searched_all=False))
    assert [f"s{i:03}" in text for i in range(60)] == [i % 3 == 0 for i in range(60)]
    assert "40 other stores on the same filesystem, 40.0 GiB (--stores" in text
    assert "--look DIR" in text


def test_every_store_on_demand() -> None:
    text = printed(a_room(ROWS, need=1, free=1000), every_store=True)
    assert all(f"s{i:03}" in text for i in range(60))
    assert "--stores" not in text


@given(st.lists(st.booleans(), max_size=25), st.integers(1, 2000), st.booleans())
def test_no_store_is_forgotten(superseded: list[bool], need: int, every_store: bool) -> None:
    rows = [a_row(i, flag, size=100) for i, flag in enumerate(superseded)]
    room = a_room(rows, need, free=1000)
    text = printed(room, every_store)
    shown = sum(f"s{i:03}" in text for i in range(len(rows)))
    words = text.split(" other store")[0].split(" store")[0].split()
    rest = int(words[-1]) if "(--stores or --json" in text else 0
    assert shown + rest == len(rows)
    if room.verdict.verdict != FITS:
        assert all(row.path.name in text for row in rows if row.can_go)


def test_the_command_shows_one_line_or_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(12):
        a_store(tmp_path / f"store-{i}", many(2), samples_hash=str(i))
    (tmp_path / "d.jsonl").write_text(json.dumps({"seq_len": 10}) + "\n")
    arguments = ["plan", str(tmp_path / "d.jsonl"), "--hidden-size", "16", "--num-layers", "6", "--layers", "2"]
    arguments += ["--look", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "12 stores on the same filesystem" in text
    assert "store-" not in text
    assert main([*arguments, "--stores"]) == 0
    text = capsys.readouterr().out
    assert all(f"store-{i}" in text for i in range(12))
    assert main([*arguments, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["room"]["stores"]) == 12
