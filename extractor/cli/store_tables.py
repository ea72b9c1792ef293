"""Documents about a store as tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Table

from extractor.sizes import MIB, size

_LONG = 8  # items of a plain list that are shown
_PATHS = {"store"}


def print_document(document: dict[str, Any]) -> None:
    """Paths as lines that can be copied, other scalars as one table, each list of objects as another, nested objects as
    a table of their own. Nothing is cut: what is too long for its column goes on in the next line."""
    console = Console(markup=False, emoji=False, highlight=False)
    for name in _PATHS & document.keys():
        console.print(f"{name} {document[name]}", soft_wrap=True)
    plain = {n: v for n, v in document.items() if n not in _PATHS and not _is_table(v) and not isinstance(v, dict)}
    console.print(_pairs("", plain))
    for name, value in document.items():
        if isinstance(value, dict) and value:
            console.print(_pairs(name, value))
        elif _is_table(value):
            console.print(_rows(name, value))


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _pairs(title: str, values: dict[str, Any]) -> Table:
    table = Table(title=title or None, show_header=False, title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(name, _text(name, value))
    return table


def _rows(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        justify: JustifyMethod = "right" if isinstance(rows[0][name], int | float) else "left"
        table.add_column(name.replace("_", " "), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(_text(name, value) for name, value in row.items()))
    return table


def _text(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value:,} ({size(value)})" if value >= MIB else f"{value:,}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.2f}" if name == "seconds" else f"{value:.4g}"
    if isinstance(value, list | tuple):
        more = f", ... ({len(value):,})" if len(value) > _LONG else ""
        return ", ".join(str(item) for item in value[:_LONG]) + more
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return "-" if value is None else str(value)
