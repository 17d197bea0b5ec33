"""What goes to stdout: one JSON document, or a table that fits a terminal, whole in a pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sessiond.cli.words import clean

GAP = 2
_ENDLESS = 1_000_000


class Cell(NamedTuple):
    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """`shrink` says what may happen where a terminal is too narrow, down to `least` characters.

    A column that may be cropped is left out where even that does not fit.
    """

    title: str
    right: bool = False
    shrink: Literal["never", "crop", "wrap"] = "never"
    least: int = 0


def print_json(document: object) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    rows = [[Cell(clean(cell.text), cell.style) for cell in row] for row in rows]
    room = _console().width if sys.stdout.isatty() else None
    widths = fit(columns, rows, room)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        if width:
            _add(table, column, width)
    for row in rows:
        table.add_row(*(Text(*cell) for cell, width in zip(row, widths, strict=True) if width))
    table.show_header = any(column.title for column in columns)
    _print(table)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Label and value, one a line; those without a value are left out."""
    rows = [[Cell(label, "bold"), Cell(value)] for label, value in facts if value]
    print_table((Column(""), Column("", shrink="wrap", least=20)), rows)


def fit(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], room: int | None) -> list[int]:
    """Width of each column in characters, 0 for one left out. `room` None: as wide as it likes."""
    widths = [_natural(column, [row[i].text for row in rows]) for i, column in enumerate(columns)]
    if room is None:
        return widths
    least = [_least(column, width) for column, width in zip(columns, widths, strict=True)]
    for i, column in enumerate(columns):
        if column.shrink == "crop" and _excess(least, room) > 0:
            widths[i] = least[i] = 0
    for way in ("crop", "wrap"):
        for i, column in enumerate(columns):
            if column.shrink == way:
                widths[i] -= min(max(_excess(widths, room), 0), widths[i] - least[i])
    return widths


def _natural(column: Column, texts: Sequence[str]) -> int:
    return max(1, cell_len(column.title), *(cell_len(text) for text in texts), 1)


def _least(column: Column, natural: int) -> int:
    return natural if column.shrink == "never" else min(natural, column.least)


def _excess(widths: Sequence[int], room: int) -> int:
    shown = [width for width in widths if width]
    return sum(shown) + GAP * (len(shown) - 1) - room


def _add(table: Table, column: Column, width: int) -> None:
    table.add_column(
        column.title,
        width=width,
        justify="right" if column.right else "left",
        no_wrap=column.shrink != "wrap",
        overflow="ellipsis" if column.shrink == "crop" else "fold",
    )


def _console() -> Console:
    """NO_COLOR means no escape codes at all here, so that bold does not surprise either."""
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(highlight=False, markup=False, color_system=None if plain else "auto")


def _print(table: Table) -> None:
    """A long name makes its line longer than the terminal rather than losing its end."""
    console = _console()
    console.width = _ENDLESS
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def note(text: str) -> None:
    """A remark for people, on stderr, dim on a terminal."""
    dim = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    print(f"\x1b[2m{text}\x1b[0m" if dim else text, file=sys.stderr, flush=True)
