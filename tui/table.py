# SPDX-License-Identifier: Apache-2.0
"""Lists in columns: which fit, in what order the rows are, and which of them are on the screen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from rich.cells import cell_len
from rich.text import Span, Text

from tiercache.tui import text
from tiercache.tui.frame import Frame
from tiercache.tui.state import View
from tiercache.tui.styles import CURSOR, DIM, HEAD, SORTED, WARN
from tiercache.tui.text import Glyphs

Row = TypeVar("Row")
Order = float | str | None


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column; those with a lower ``rank`` stay when the screen gets narrower.

    ``width`` counts the blank before it. One that ``grows`` takes what the others leave. Cells of
    one that is ``marked`` end in a cell for a mark.
    """

    title: str
    width: int
    rank: int
    cell: Callable[[Row], str]
    order: Callable[[Row], Order] | None = None
    left: bool = False
    grows: bool = False
    marked: bool = False
    style: Callable[[Row], str] | None = None


def number(
    title: str,
    width: int,
    rank: int,
    read: Callable[[Row], float | None],
    show: Callable[[float | None], str] = text.count,
) -> Column[Row]:
    """A column of numbers, sorted by what is shown."""
    return Column(title, width, rank, lambda row: show(read(row)), read)


class Fitted(NamedTuple, Generic[Row]):
    """A column and the cells that it gets."""

    column: Column[Row]
    width: int


def fitting(columns: Sequence[Column[Row]], width: int) -> list[Fitted[Row]]:
    """The columns that fit in ``width`` cells, in their order."""
    room = width - 1
    chosen: set[str] = set()
    for column in sorted(columns, key=lambda column: column.rank):
        if column.width > room:
            break
        room -= column.width
        chosen.add(column.title)
    kept = [column for column in columns if column.title in chosen]
    return [Fitted(c, c.width + (room if c.grows else 0)) for c in kept]


def titles(columns: Sequence[Column[Row]]) -> tuple[str, ...]:
    """What the rows can be sorted by."""
    return tuple(column.title for column in columns if column.order is not None)


def ordered(rows: Sequence[Row], columns: Sequence[Column[Row]], frame: Frame) -> list[Row]:
    """``rows`` as the reader wants them sorted; what is not known goes last."""
    by = next((column.order for column in columns if _sorts(column, frame)), None)
    if by is None:
        return list(reversed(rows)) if frame.ui.inverted else list(rows)
    keyed = [(by(row), row) for row in rows]
    known = [(key, row) for key, row in keyed if key is not None]
    known.sort(key=lambda pair: pair[0], reverse=frame.ui.inverted)
    return [row for _, row in known] + [row for key, row in keyed if key is None]


def head(fitted: Sequence[Fitted[Row]], frame: Frame) -> Text:
    line = Text(" ", style=HEAD)
    for column, width in fitted:
        title = f"{column.title}{' ' if column.marked else ''}"
        shown = _aligned(column, title, width, frame.glyphs)
        line.append(shown, SORTED if _sorts(column, frame) else "")
    return line


def _sorts(column: Column[Row], frame: Frame) -> bool:
    return column.order is not None and column.title == frame.ui.sort.upper()


def row_line(
    row: Row, fitted: Sequence[Fitted[Row]], frame: Frame, *, selected: bool = False
) -> Text:
    words, spans = ">" if selected else " ", []
    for column, width in fitted:
        at = len(words)
        value = text.clean(column.cell(row), frame.glyphs)
        words += _aligned(column, value, width, frame.glyphs)
        if column.style is not None and (style := column.style(row)):
            spans.append(Span(at, len(words), style))
    line = Text(words, "" if frame.is_live else DIM, spans=spans)
    if selected:
        line.stylize(CURSOR)
    return line


def plain(row: Row, columns: Sequence[Column[Row]], frame: Frame) -> str:
    """A row as text to copy: every column, also those that the screen has no room for."""
    cells = (column.cell(row).strip() for column in columns)
    return text.clean("  ".join(cell for cell in cells if cell), frame.glyphs)


def _aligned(column: Column[Row], value: str, width: int, glyphs: Glyphs) -> str:
    shown = text.cut(value, width - 1, glyphs)
    return f" {text.fit(shown, width - 1)}" if column.left else text.right(shown, width)


def listing(
    rows: Sequence[Row], columns: Sequence[Column[Row]], frame: Frame, width: int, room: int
) -> list[Text]:
    """A head and the rows around the cursor, ``room`` lines at most."""
    if room <= 0:
        return []
    fitted = fitting(columns, width)
    at = cursor(frame, len(rows))
    first = first_shown(len(rows), at, room - 1)
    shown = rows[first : first + room - 1]
    lines = (row_line(row, fitted, frame, selected=first + i == at) for i, row in enumerate(shown))
    return [head(fitted, frame), *lines]


def cursor(frame: Frame, number: int) -> int:
    """The row under the cursor; -1 if there is none. A log that is followed has it at its end.

    A cursor below 0 is none: a report has no use for it.
    """
    if frame.ui.cursor < 0:
        return -1
    if frame.ui.view is View.EVENTS and frame.ui.follow:
        return number - 1
    return min(max(frame.ui.cursor, 0), number - 1)


def first_shown(number: int, at: int, room: int) -> int:
    """The row at the top of ``room`` lines, such that the one ``at`` is seen."""
    return max(min(at - room // 2, number - room), 0)


def rule(frame: Frame, width: int, left: str = "", right: str = "", *, style: str = "") -> Text:
    """A line across the screen with words in it; the right ones go first where room is short."""
    glyph = frame.glyphs.rule
    left = text.cut(text.clean(left, frame.glyphs), width - 4, frame.glyphs)
    right = text.clean(right, frame.glyphs)
    if cell_len(left) + cell_len(right) + 7 > width:
        right = ""
    line = Text(glyph if not left else f"{glyph} ")
    line.append(left, style or (HEAD if frame.is_live else DIM)).append(" " if left else "")
    tail = f" {right} {glyph}" if right else ""
    line.append(glyph * (width - line.cell_len - cell_len(tail)))
    return line.append(tail)


def heading(
    frame: Frame,
    width: int,
    words: str,
    shown: int,
    everything: int,
    *,
    problem: str = "",
    note: str = "",
) -> Text:
    """The line above a list: what it is, how it is filtered and sorted, where the cursor is."""
    ui = frame.ui
    at = cursor(frame, shown)
    notes = [f"{at + 1}/{shown}"] if at >= 0 else []
    if note:
        notes.insert(0, note)
    if ui.sort or ui.inverted:
        notes.insert(0, f"by {ui.sort or 'default'}{', inverted' if ui.inverted else ''}")
    if ui.filter and problem:
        return rule(frame, width, f"filter: {problem}", "".join(notes[-1:]), style=WARN)
    if ui.filter:
        words = f"filter {ui.filter}: {shown} of {everything}  {words}"
    return rule(frame, width, words, "  ".join(notes))
