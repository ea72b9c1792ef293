"""Stores that lie near the chosen one: as much of them as the question whether the job fits needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from extractor.budget.room import RoomReport, StoreRow
from extractor.budget.verdict import FITS
from extractor.sizes import size

_SHOWN = 10
_ROOMY = 0.9  # of the free space: below it nobody has to look for more


def store_lines(room: RoomReport, every_store: bool = False) -> Iterator[RenderableType]:
    """One line where the job fits with room to spare; else the superseded and largest stores, all that could go where
    room is needed, and a line for the rest. `every_store`: the whole table."""
    shown = room.stores if every_store else _worth_showing(room)
    rest = [row for row in room.stores if row not in shown]
    if shown:
        yield ""
        yield _table(shown)
    if rest:
        yield Text(_rest_line(rest, bool(shown)))
    if shown:
        yield ""
    if not room.searched_all and not _is_roomy(room):
        yield Text("not every folder was searched for stores; name where they lie with --look DIR")


def _is_roomy(room: RoomReport) -> bool:
    return room.verdict.verdict == FITS and room.verdict.need_bytes <= _ROOMY * room.verdict.free_bytes


def _worth_showing(room: RoomReport) -> tuple[StoreRow, ...]:
    """Superseded ones first, each part largest first, as they come."""
    if _is_roomy(room):
        return ()
    removable = [row for row in room.stores if row.can_go]
    others = [row for row in room.stores if not row.can_go]
    least = 0 if room.verdict.verdict == FITS else len(removable)
    return tuple([*removable, *others][: max(least, _SHOWN)])


def _rest_line(rest: Sequence[StoreRow], others: bool) -> str:
    """How many stores are not in the table, what they occupy, and how to see them."""
    stores = f"{len(rest):,} {'other ' if others else ''}store{'s' if len(rest) > 1 else ''}"
    removable = [row for row in rest if row.can_go]
    frees = size(sum(row.freed_bytes for row in removable))
    freed = f"; removing the {len(removable):,} that look superseded frees {frees}"
    return (
        f"{stores} on the same filesystem, {size(sum(row.disk_bytes for row in rest))}{freed if removable else ''} "
        "(--stores or --json lists them)"
    )


def _table(rows: Sequence[StoreRow]) -> Table:
    table = Table(title="Stores on the same filesystem", title_justify="left", box=None, pad_edge=False)
    for column, justify in (
        ("store", "left"),
        ("model", "left"),
        ("samples", "right"),
        ("on disk", "right"),
        ("removing frees", "right"),
        ("written", "left"),
        ("", "left"),
    ):
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        sizes = (f"{row.samples:,}", size(row.disk_bytes), size(row.freed_bytes))
        table.add_row(escape(str(row.path)), escape(row.model), *sizes, row.written, escape(_remark(row)))
    return table


def _remark(row: StoreRow) -> str:
    parts = [
        f"superseded ({row.superseded})" if row.superseded else "",
        f"in use by {row.in_use}" if row.in_use else "",
    ]
    parts += [row.problem] if row.problem and row.problem not in row.superseded else []
    return "; ".join(part for part in parts if part)
