"""What goes to stdout: one JSON document, or a table that fits a terminal, whole in a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import orjson

from sessiond.cli.words import clean

if TYPE_CHECKING:  # a pipe gets plain text: what makes it colourful is loaded where it is shown
    from rich.console import Console
    from rich.table import Table

GAP = 2
_ENDLESS = 1_000_000
_AS_JSON = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_FORCING = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""With these, rich has escape codes for a pipe, too."""


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
    """`document` may hold dataclasses and tuples with names."""
    print(orjson.dumps(document, default=list, option=_AS_JSON).decode())


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    room = _console().width if sys.stdout.isatty() else None
    if lines := table_lines(columns, rows, room):
        print("\n".join(lines))


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], room: int | None
) -> list[str]:
    """Of at most `room` characters where the columns can be made so narrow. None: no limit."""
    rows = [[Cell(clean(text), style) for text, style in row] for row in rows]
    widths = fit(columns, rows, room)
    if any(column.title for column in columns):
        rows = [[Cell(column.title, "bold") for column in columns], *rows]
    return _Table(columns, widths).lines(rows)


def _length(text: str) -> int:
    """Characters of a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _longest(texts: Sequence[str]) -> int:
    # One look at all of them together is ten times faster than one at each.
    return max(map(len if "".join(texts).isascii() else _length, texts), default=0)


class _Table:
    """Rows as lines. What fits is put together here: rich takes half a millisecond for each."""

    def __init__(self, columns: Sequence[Column], widths: Sequence[int]) -> None:
        self._shown = [
            (place, column, width)
            for place, (column, width) in enumerate(zip(columns, widths, strict=True))
            if width
        ]
        self._plain = not _may_have_styles()
        self._around: dict[str, tuple[str, str]] = {}

    @cached_property
    def _console(self) -> Console:
        console = _console()
        console.width = _ENDLESS
        return console

    def lines(self, rows: Sequence[Sequence[Cell]]) -> list[str]:
        shown = [
            self._column([row[place] for row in rows], column, width)
            for place, column, width in self._shown
        ]
        whole = [(" " * GAP).join(cells).rstrip() for cells in zip(*shown, strict=True)]
        lines: list[str] = []
        done = 0
        for at in self._too_long(rows):
            lines += [*whole[done:at], *self._wrapped(rows[at])]
            done = at + 1
        return lines + whole[done:]

    def _too_long(self, rows: Sequence[Sequence[Cell]]) -> list[int]:
        """Which rows must be wrapped."""
        found = set[int]()
        for place, column, width in self._shown:
            if column.shrink == "wrap":
                texts = [row[place].text for row in rows]
                found |= {at for at, text in enumerate(texts) if _length(text) > width}
        return sorted(found)

    def _column(self, cells: Sequence[Cell], column: Column, width: int) -> list[str]:
        texts = [text for text, _ in cells]
        if "".join(texts).isascii() and _longest(texts) <= width and not self._is_styled(cells):
            return [text.rjust(width) if column.right else text.ljust(width) for text in texts]
        return [self._cell(cell, column, width) for cell in cells]

    def _is_styled(self, cells: Sequence[Cell]) -> bool:
        return not self._plain and any(style for _, style in cells)

    def _cell(self, cell: Cell, column: Column, width: int) -> str:
        text, free = cell.text, width - _length(cell.text)
        if free < 0:
            text, free = _cropped(text, width), 0
        before, after = self._codes(cell.style)
        space = " " * free
        return f"{space}{before}{text}{after}" if column.right else f"{before}{text}{after}{space}"

    def _codes(self, style: str) -> tuple[str, str]:
        """What the terminal is told before and after a text of this style."""
        if self._plain or not style:
            return "", ""
        if style not in self._around:
            from rich.text import Text

            with self._console.capture() as captured:
                self._console.print(Text("x", style), end="")
            before, _, after = captured.get().partition("x")
            self._around[style] = before, after
        return self._around[style]

    def _wrapped(self, row: Sequence[Cell]) -> list[str]:
        from rich.table import Table
        from rich.text import Text

        table = Table(
            box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=False, expand=False
        )
        for _, column, width in self._shown:
            _add(table, column, width)
        table.add_row(*(Text(*row[place]) for place, _, _ in self._shown))
        with self._console.capture() as captured:
            self._console.print(table)
        return [line.rstrip() for line in captured.get().splitlines()]


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
    return max(1, _length(column.title), _longest(texts))


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


def _cropped(text: str, width: int) -> str:
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1) + "…"


def _may_have_styles() -> bool:
    return sys.stdout.isatty() or any(name in os.environ for name in _FORCING)


def _console() -> Console:
    """NO_COLOR means no escape codes at all here, so that bold does not surprise either."""
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR"))
    return Console(highlight=False, markup=False, color_system=None if plain else "auto")


def note(text: str) -> None:
    """A remark for people, on stderr, dim on a terminal."""
    dim = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    print(f"\x1b[2m{text}\x1b[0m" if dim else text, file=sys.stderr, flush=True)
