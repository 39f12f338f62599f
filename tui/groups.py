# SPDX-License-Identifier: Apache-2.0
"""The table of groups: one row each, slots by state, a bar, and counters where there is room."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from rich.text import Text

from tiercache.tui import text
from tiercache.tui.frame import Frame
from tiercache.tui.snapshot import Group
from tiercache.tui.text import Glyphs

#: Below this a bar cannot tell one slot in ten from none.
MIN_BAR = 16
#: Beyond this a longer bar says no more.
MAX_BAR = 60
NAME_WIDTH = 6
MAX_NAME_WIDTH = 14

HEAD = "bold"
BAD = "bold red"
BAR_STYLES = ("green", "yellow", "cyan", "")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers. Those with a lower ``rank`` stay when the screen gets narrower.

    One that ``alarms`` stands out where the next store evicts a live entry.
    """

    title: str
    width: int
    rank: int
    cell: Callable[[Group], str]
    left: bool = False
    alarms: bool = False


COLUMNS = (
    Column("KIND", 7, 6, lambda g: g.kind, left=True),
    Column("SLOTS", 6, 1, lambda g: text.count(g.capacity)),
    Column("FREE", 6, 3, lambda g: text.count(g.slots.free)),
    Column("STOR", 5, 7, lambda g: text.count(g.slots.storing)),
    Column("LIVE", 6, 2, lambda g: text.count(g.slots.live)),
    Column("DEMOT", 6, 4, lambda g: text.count(g.slots.demoted)),
    Column("PIN", 5, 5, lambda g: text.count(g.slots.pinned)),
    Column("SPARE ", 7, 0, lambda g: text.count(g.spare) + (_alarm(g) or " "), alarms=True),
    Column("EV.LIVE", 8, 8, lambda g: text.count(g.counters.evicted_live)),
    Column("EV.DEM", 7, 10, lambda g: text.count(g.counters.evicted_demoted)),
    Column("DEMOTIONS", 10, 9, lambda g: text.count(g.counters.demotions)),
    Column("STORED", 9, 11, lambda g: text.size(g.counters.stored_bytes)),
    Column("RESTORED", 9, 12, lambda g: text.size(g.counters.restored_bytes)),
    Column("NO ROOM", 8, 13, lambda g: text.count(g.counters.reserve_failures)),
)


class Shape(NamedTuple):
    """What fits on a line: the columns of numbers, and cells for the name and the bar."""

    name_width: int
    columns: Sequence[Column]
    bar_width: int


class Row(NamedTuple):
    """One line of the table: a group, or several that are equal in everything but the name."""

    name: str
    group: Group
    members: int = 1


def rows(frame: Frame, *, merge: bool = False) -> list[Row]:
    """The rows of the newest snapshot; ``merge`` puts equal neighbours into one."""
    latest = frame.latest
    groups = [] if latest is None else list(latest.groups)
    several = len({group.engine for group in groups}) > 1
    ordered = frame.sort.apply(groups)
    named = [Row(_name(group, frame.glyphs, with_engine=several), group) for group in ordered]
    if not merge:
        return named
    runs = [list(run) for _, run in groupby(named, key=lambda row: replace(row.group, name=""))]
    return [_merged(run) for run in runs]


def table(
    shown: Sequence[Row], lines: int, width: int, glyphs: Glyphs, *, fresh: bool
) -> list[Text]:
    """A head and a line per row, ``lines`` at most; numbers that are not ``fresh`` are dimmed."""
    kept, left_out = _cut(shown, lines - 1)
    name_width = min(max([NAME_WIDTH, *(len(row.name) + 1 for row in kept)]), MAX_NAME_WIDTH)
    shape = _shape(name_width, width - 1 - name_width)
    titles = "".join(_aligned(column, column.title) for column in shape.columns)
    head = f" {text.fit('GROUP', name_width)}{titles}{_legend(shape.bar_width, glyphs)}"
    return [
        Text(head, style=HEAD),
        *(_line(row, shape, glyphs, fresh=fresh) for row in kept),
        *left_out,
    ]


def spare(shown: Sequence[Row], lines: int) -> list[Text]:
    """The smallest table: how many stores each group takes before a live entry goes."""
    kept, left_out = _cut(shown, lines)
    return [
        *(
            Text(f" {text.fit(row.name, MAX_NAME_WIDTH)} spare ").append_text(_spare(row.group))
            for row in kept
        ),
        *left_out,
    ]


def _cut(shown: Sequence[Row], lines: int) -> tuple[Sequence[Row], list[Text]]:
    """The first rows, and in place of the others a line that says the worst of them."""
    if len(shown) <= lines:
        return shown, []
    kept, rest = shown[: max(lines - 1, 0)], shown[max(lines - 1, 0) :]
    worst = min((row.group for row in rest), key=lambda group: group.spare)
    note = Text(f" and {sum(row.members for row in rest)} more groups, spare from ", style=HEAD)
    return kept, [note.append_text(_spare(worst)).append(" up")]


def _spare(group: Group) -> Text:
    return Text(f"{group.spare}{_alarm(group)}", style="" if group.spare else BAD)


def _name(group: Group, glyphs: Glyphs, *, with_engine: bool) -> str:
    name = f"g{group.name}" if group.name.isdecimal() else group.name
    return text.clean(f"e{group.engine}.{name}" if with_engine else name, glyphs)


def _merged(run: Sequence[Row]) -> Row:
    first, last = run[0], run[-1]
    if len(run) == 1:
        return first
    name = f"{first.name}-{last.name.rpartition('.')[2]} x{len(run)}"
    return Row(name, first.group, len(run))


def _shape(name_width: int, room: int) -> Shape:
    """The columns that fit beside a bar, in their order, and what is left for the bar."""
    room -= MIN_BAR + 1
    chosen = set()
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        if column.width > room:
            break
        room -= column.width
        chosen.add(column.title)
    bar_width = max(min(MIN_BAR + room, MAX_BAR), 0)
    return Shape(name_width, [c for c in COLUMNS if c.title in chosen], bar_width)


def _legend(width: int, glyphs: Glyphs) -> str:
    marks = (glyphs.live, glyphs.demoted, glyphs.busy, glyphs.free)
    words = ("live", "dem", "busy", "free")
    legend = ""
    for entry in map(str.__add__, marks, words):
        if len(legend) + len(entry) > width:
            break
        legend += f" {entry}"
    return legend


def _aligned(column: Column, value: str) -> str:
    if column.left:
        return f" {text.fit(value, column.width - 1)}"
    return text.right(value, column.width)


def _line(row: Row, shape: Shape, glyphs: Glyphs, *, fresh: bool) -> Text:
    line = Text(f" {text.fit(row.name, shape.name_width)}", style="" if fresh else "dim")
    for column in shape.columns:
        value = text.clean(column.cell(row.group), glyphs)
        alarming = column.alarms and not row.group.spare
        line.append(_aligned(column, value), style=BAD if alarming else "")
    line.append(" ").append_text(_bar(row.group, shape.bar_width, glyphs))
    return line


def _alarm(group: Group) -> str:
    """Marks a group whose next store evicts a live entry; colour alone is not enough."""
    return "" if group.spare else "!"


def _bar(group: Group, width: int, glyphs: Glyphs) -> Text:
    free, storing, live, demoted, pinned = group.slots
    parts = (live, demoted, pinned + storing, free)
    marks = (glyphs.live, glyphs.demoted, glyphs.busy, glyphs.free)
    bar = Text()
    for mark, cells, style in zip(marks, text.share(parts, width), BAR_STYLES, strict=True):
        bar.append(mark * cells, style=style)
    return bar
