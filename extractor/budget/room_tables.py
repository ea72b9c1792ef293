"""The disk part of a plan, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from extractor.budget.room import RoomReport
from extractor.budget.store_lines import store_lines
from extractor.budget.verdict import DOES_NOT_FIT, FITS
from extractor.sizes import size


def room_lines(room: RoomReport, every_store: bool = False) -> Iterator[RenderableType]:
    yield Text(f"disk at {room.out}: {_space(room)}")
    yield from store_lines(room, every_store)
    yield Text(f"needs {size(room.verdict.need_bytes)}, seals and rounding included{_resume(room)}")
    yield Text(verdict_line(room), style="bold green" if room.verdict.verdict == FITS else "bold red")


def verdict_line(room: RoomReport) -> str:
    verdict = room.verdict
    if verdict.verdict == FITS:
        return f"verdict: fits, {size(verdict.free_bytes - verdict.need_bytes)} to spare"
    if verdict.verdict == DOES_NOT_FIT:
        return (
            f"verdict: does not fit by {size(verdict.short_bytes)} ({verdict.short_bytes:,} bytes){_even_after(room)}"
        )
    return f"verdict: fits after removing {', '.join(verdict.remove)} (extractor remove STORE)"


def _even_after(room: RoomReport) -> str:
    return ", even with every superseded store removed" if any(row.can_go for row in room.stores) else ""


def _space(room: RoomReport) -> str:
    space = room.space
    parts = [f"{size(space.free_bytes)} free of {size(space.total_bytes)}"]
    if space.quota_left_bytes is not None:
        parts.append(f"the quota leaves {size(space.quota_left_bytes)}")
    if space.reserved_bytes:
        parts.append(f"{size(space.reserved_bytes)} reserved for root not counted")
    return "; ".join(parts)


def _resume(room: RoomReport) -> str:
    if not room.stored_tokens:
        return ""
    return f"; the store there already holds {room.stored_samples:,} samples, {room.stored_tokens:,} tokens of the job"
