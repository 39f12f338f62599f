# SPDX-License-Identifier: Apache-2.0
"""What a command lists, as a table for people, or as CSV or JSON for programs.

Covers columns, the three formats and the width of a terminal. A row has a value for each column,
under the column's name: whole numbers, seconds and bytes, without units; None where nothing is
known. That is what JSON and CSV show, and a table shows it as its column says. Words for people are
in tables only.
"""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from textwrap import wrap
from typing import Any, Final

import click

from tiercache.cli import output
from tiercache.cli.table import GAP, clean, table

UNKNOWN: Final = "-"
CUT: Final = "…"
_SPECIAL: Final = frozenset(',"\r\n')

Row = Mapping[str, object]
Lines = Iterable[str]


class Form(StrEnum):
    """How a listing is printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name in JSON and CSV, and what a table makes of it."""

    name: str
    head: str | None = None
    """None: tables leave it out."""
    show: Callable[[Any], str] = str
    """The text of a value that is not None."""
    left: bool = False
    spare: bool = False
    """Whether a terminal that is too narrow does without it: the last such column goes first."""
    least: int = 0
    """Width at least, for what comes row by row."""


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--format``, ``-j/--json`` and ``--csv``; the command gets a ``form``."""
    form = click.option(
        "form",
        "--format",
        type=click.Choice([form.value for form in Form]),
        help="How to print it.  [table]",
    )
    json = click.option(
        "form", "-j", "--json", flag_value="json", help="The same as --format json."
    )
    csv = click.option("form", "--csv", flag_value="csv", help="The same as --format csv.")
    return form(json(csv(command)))


def document(schema: str, source: Mapping[str, object], data: object) -> dict[str, object]:
    """What every command prints as JSON: the schema with its version, whence, and the rows."""
    return {"schema": schema, "source": dict(source), "data": data}


def projected(columns: Sequence[Column], row: Row) -> dict[str, object]:
    """What JSON has of a row: the columns, in their order."""
    return {column.name: row[column.name] for column in columns}


def csv_line(values: Iterable[object]) -> str:
    """One line of CSV; None is empty."""
    return ",".join(_quoted("" if value is None else _plain(value)) for value in values)


def csv_lines(columns: Sequence[Column], rows: Iterable[Row]) -> Iterator[str]:
    """A head and a line for each row."""
    yield csv_line(column.name for column in columns)
    for row in rows:
        yield csv_line(row[column.name] for column in columns)


def table_lines(columns: Sequence[Column], rows: Iterable[Row]) -> list[str]:
    """A table that fits the terminal; without a terminal, all of it."""
    shown = [column for column in columns if column.head is not None]
    cells = [{column.name: cell(column, row) for column in shown} for row in rows]
    room = width()
    while True:
        heads = [_head(column) for column in shown]
        left = [index for index, column in enumerate(shown) if column.left]
        texts = [[row[column.name] for column in shown] for row in cells]
        lines = list(table(heads, texts, left=left))
        if room is None or max(map(len, lines)) <= room or not (less := _fewer(shown)):
            return [fitted(line) for line in lines]
        shown = less


def cell(column: Column, row: Row) -> str:
    value = row[column.name]
    return UNKNOWN if value is None else clean(column.show(value))


def width() -> int | None:
    """Columns of the terminal; None: there is none, so nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitted(line: str) -> str:
    return _cut(line, width())


def _cut(line: str, room: int | None) -> str:
    return line if room is None or len(line) <= room else line[: max(room - 1, 0)] + CUT


def paragraph(name: str, text: str, indent: int = 14) -> list[str]:
    """Something by its name and in words, which go on in further lines of a terminal."""
    room = width()
    if room is None:
        return [f"{name:<{indent}}{text}"]
    return wrap(
        text,
        max(room, 2 * indent),
        initial_indent=f"{name:<{indent}}",
        subsequent_indent=" " * indent,
    )


def show(
    form: Form | str | None,
    *,
    schema: str,
    source: Mapping[str, object],
    columns: Sequence[Column],
    rows: Sequence[Row],
    shown: tuple[Sequence[Column], Iterable[Row]] | None = None,
    notes: Lines = (),
) -> None:
    """Print ``rows``; a table has the columns and rows ``shown`` instead, if given, and ``notes``.

    Rows of JSON have exactly the ``columns``.
    """
    match Form(form or Form.TABLE):
        case Form.JSON:
            output.document(document(schema, source, [projected(columns, row) for row in rows]))
        case Form.CSV:
            output.lines(csv_lines(columns, rows))
        case Form.TABLE:
            for line in table_lines(*(shown or (columns, rows))):
                output.text(line)
            for note in notes:
                output.text(fitted(note))


class Stream:
    """A table whose rows come one after another: columns have the width that they begin with.

    A cell that is wider moves what follows it on its line.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        shown = [column for column in columns if column.head is not None]
        self._room = room = width()
        while room is not None and _least(shown) > room and (less := _fewer(shown)):
            shown = less
        self._columns = [(column, len(_head(column))) for column in shown]

    def head(self) -> str:
        heads = (_head(column) for column, _ in self._columns)
        return _cut(GAP.join(heads).rstrip(), self._room)

    def line(self, row: Row) -> str:
        cells = (_placed(column, cell(column, row), cells) for column, cells in self._columns)
        return _cut(GAP.join(cells).rstrip(), self._room)


def _fewer(columns: Sequence[Column]) -> list[Column]:
    """Without the column that is missed least; none if nothing can go: text can be cut.

    A number is not cut: it would be read as another one.
    """
    spare = [column for column in columns if column.spare] or [columns[-1]]
    if len(columns) < 2 or (spare[-1].left and not spare[-1].spare):
        return []
    return [column for column in columns if column is not spare[-1]]


def _least(columns: Sequence[Column]) -> int:
    return sum(len(_head(column)) for column in columns) + len(GAP) * (len(columns) - 1)


def _head(column: Column) -> str:
    return _placed(column, column.head or "", column.least)


def _placed(column: Column, text: str, cells: int) -> str:
    return text.ljust(cells) if column.left else text.rjust(cells)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(text: str) -> str:
    if _SPECIAL.isdisjoint(text):
        return text
    return '"' + text.replace('"', '""') + '"'
