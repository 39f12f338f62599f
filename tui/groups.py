# SPDX-License-Identifier: Apache-2.0
"""The table of groups: one row each, slots by state, what the next store takes, and a bar."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from tiercache.stats.model import Group, Kind
from tiercache.tui import notices, reasons, table, text
from tiercache.tui.filters import Facts, Matches, matching
from tiercache.tui.frame import Frame
from tiercache.tui.styles import BAD, BAR, DIM, HEAD
from tiercache.tui.table import Column, number
from tiercache.tui.text import Glyphs
from tiercache.tui.trends import moment

#: Below this a bar cannot tell one slot in ten from none.
MIN_BAR = 12
#: Beyond this a longer bar says no more.
MAX_BAR = 60
MAX_NAME_WIDTH = 14
FIELDS = ("kind", "group")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a group, or ``members`` that look the same but for the name."""

    name: str
    group: Group
    tail: float | None
    """Seconds since the live entry that is evicted first was used."""
    counts: Mapping[str, int | None]
    first: int
    """Its position among all rows."""
    members: int = 1

    @property
    def spare(self) -> str:
        return text.count(self.group.slots.spare) + ("!" if self.alarms else " ")

    @property
    def alarms(self) -> bool:
        return reasons.is_alarming(self.group)

    @property
    def busy(self) -> int:
        return self.group.slots.pinned + self.group.slots.storing


def _alarm(row: Row) -> str:
    return BAD if row.alarms else ""


COLUMNS: Sequence[Column[Row]] = (
    Column("GROUP", 6, 0, lambda r: r.name, lambda r: r.name, left=True),
    Column("KIND", 7, 6, lambda r: r.group.kind, lambda r: r.group.kind, left=True),
    number("PAGE", 9, 11, lambda r: r.group.slot_bytes, text.size),
    number("SLOTS", 6, 1, lambda r: r.group.slots.capacity),
    number("FREE", 6, 4, lambda r: r.group.slots.free),
    number("LIVE", 6, 3, lambda r: r.group.slots.live),
    number("DEMOT", 6, 5, lambda r: r.group.slots.demoted),
    number("BUSY", 5, 7, lambda r: r.busy),
    Column(
        "SPARE", 7, 1, lambda r: r.spare, lambda r: r.group.slots.spare, style=_alarm, marked=True
    ),
    number("TAIL", 5, 8, lambda r: r.tail, text.age),
    Column("NEXT", 8, 2, lambda r: reasons.next_victim(r.group), left=True, style=_alarm),
    number("EV.LIVE", 8, 9, lambda r: r.counts[Kind.EVICTED_LIVE]),
    number("EV.DEM", 7, 10, lambda r: r.counts[Kind.EVICTED_DEMOTED]),
)
COUNTED = (Kind.EVICTED_LIVE, Kind.EVICTED_DEMOTED)


def found(frame: Frame) -> Matches:
    """Positions of the groups that the filter leaves, in the order of the snapshot."""
    groups = () if frame.latest is None else frame.latest.groups
    return matching(frame.ui.filter, groups, _facts, FIELDS)


def _facts(group: Group) -> Facts:
    return Facts(f"{group.name} {group.kind}", {"kind": (group.kind,), "group": (group.name,)})


def rows(frame: Frame) -> list[Row]:
    """The groups of the newest snapshot, filtered and sorted."""
    latest = frame.latest
    if latest is None:
        return []
    chosen = [_row(frame, latest.groups[i], moment(latest)) for i in found(frame).rows]
    ordered = table.ordered(chosen, COLUMNS, frame)
    return [_placed(row, i) for i, row in enumerate(ordered)]


def _row(frame: Frame, group: Group, taken: float) -> Row:
    tail = None if group.oldest_live is None else taken - group.oldest_live
    counts: dict[str, int | None] = {k: count_of(frame, group, k) for k in COUNTED}
    return Row(text.clean(group.name, frame.glyphs), group, tail, counts, 0)


def _placed(row: Row, first: int) -> Row:
    return Row(row.name, row.group, row.tail, row.counts, first)


def count_of(frame: Frame, group: Group, kind: Kind) -> int | None:
    """What happened in a group since the baseline; None if that is not known."""
    now = group.counts.get(kind)
    if now is None or frame.baseline is None:
        return now
    then = next((g.counts.get(kind) for g in frame.baseline.groups if g.name == group.name), None)
    return now - then if then is not None and now >= then else None


def merged(shown: Sequence[Row]) -> list[Row]:
    """``shown`` with neighbours that differ in the name alone put into one row."""
    runs = [list(run) for _, run in groupby(shown, key=_look)]
    return [_merged(run) for run in runs]


def _look(row: Row) -> tuple[object, ...]:
    return (row.group.slots, *(column.cell(row) for column in COLUMNS[1:]))


def _merged(run: Sequence[Row]) -> Row:
    first, last = run[0], run[-1]
    if len(run) == 1:
        return first
    name = f"{first.name}-{last.name.rpartition('.')[2]} x{len(run)}"
    return Row(name, first.group, first.tail, first.counts, first.first, len(run))


def lines(shown: Sequence[Row], frame: Frame, width: int, room: int) -> list[Text]:
    """A head and a line per row, ``room`` lines at most, the row under the cursor among them."""
    at = table.cursor(frame, sum(row.members for row in shown))
    under = next((i for i, r in enumerate(shown) if r.first <= at < r.first + r.members), -1)
    first = table.first_shown(len(shown), under, room - 1)
    kept = shown[first : first + max(room - 1, 0)]
    fitted, bar = _shape(shown, width)
    title = legend(frame.glyphs)
    head = table.head(fitted, frame).append(f" {title if len(title) <= bar else 'OCCUPANCY'}")
    body = [
        _line(row, fitted, frame, bar, selected=first + i == under) for i, row in enumerate(kept)
    ]
    return [head, *body][: max(room, 0)]


def legend_beside(shown: Sequence[Row], frame: Frame, width: int) -> str:
    """The legend, if the head of the table has no room for it."""
    title = legend(frame.glyphs)
    return title if len(title) > _shape(shown, width)[1] else ""


def _shape(shown: Sequence[Row], width: int) -> tuple[list[table.Fitted[Row]], int]:
    """The columns that fit beside a bar, and the cells that this leaves for it."""
    columns = _named(max((len(row.name) for row in shown), default=0))
    fitted = table.fitting(columns, width - MIN_BAR - 1)
    return fitted, min(width - 2 - sum(cells for _, cells in fitted), MAX_BAR)


def _named(longest: int) -> list[Column[Row]]:
    """The columns with as much room for names as these need."""
    name = COLUMNS[0]
    width = min(max(name.width, longest + 1), MAX_NAME_WIDTH)
    return [Column(name.title, width, 0, name.cell, name.order, left=True), *COLUMNS[1:]]


def _line(
    row: Row, fitted: Sequence[table.Fitted[Row]], frame: Frame, bar: int, *, selected: bool
) -> Text:
    line = table.row_line(row, fitted, frame, selected=selected)
    return line.append(" ").append_text(slot_bar(row.group, bar, frame.glyphs))


def spare(shown: Sequence[Row], frame: Frame, room: int) -> list[Text]:
    """The smallest table: how many stores each group takes before a live entry goes."""
    kept = shown if len(shown) <= room else shown[: max(room - 1, 0)]
    body = [_spare(row.name, row, frame) for row in kept]
    if len(kept) < len(shown):
        rest = shown[len(kept) :]
        least = min(rest, key=lambda row: row.group.slots.spare)
        body.append(_spare(f"{sum(row.members for row in rest)} more from", least, frame))
    return body[: max(room, 0)]


def _spare(name: str, row: Row, frame: Frame) -> Text:
    line = Text(f" {text.fit(name, MAX_NAME_WIDTH)} spare ", "" if frame.is_live else DIM)
    line.append(row.spare, _alarm(row))
    return line.append(f" next: {reasons.next_victim(row.group)}", _alarm(row))


def legend(glyphs: Glyphs) -> str:
    """What the marks of a bar mean."""
    return f"{glyphs.live}live {glyphs.demoted}dem {glyphs.busy}busy {glyphs.free}free"


def slot_bar(group: Group, width: int, glyphs: Glyphs) -> Text:
    slots = group.slots
    return bar((slots.live, slots.demoted, slots.pinned + slots.storing, slots.free), width, glyphs)


def bar(parts: Sequence[int], width: int, glyphs: Glyphs) -> Text:
    """Live, demoted, busy and free in proportion."""
    marks = (glyphs.live, glyphs.demoted, glyphs.busy, glyphs.free)
    line = Text()
    for mark, cells, style in zip(marks, text.share(parts, width), BAR, strict=True):
        line.append(mark * cells, style=style)
    return line


def detail(frame: Frame, width: int) -> list[Text]:
    """The group under the cursor at length."""
    shown = rows(frame)
    at = table.cursor(frame, len(shown))
    if at < 0:
        return []
    first, *more = notices.paragraphs(frame, width, *_facts_at_length(frame, shown[at]))
    return [Text(first.plain, HEAD), *more]


def _facts_at_length(frame: Frame, row: Row) -> tuple[str, ...]:
    group, slots = row.group, row.group.slots
    what = (
        f"{row.name}: {group.kind}, {text.count(slots.capacity)} slots of "
        f"{text.size(group.slot_bytes)}, each for {text.count(group.chunk_tokens)} tokens"
    )
    states = (
        f"free {slots.free}  storing {slots.storing}  live {slots.live}  demoted {slots.demoted}"
        f"  pinned {slots.pinned}  spare {slots.spare}  tail {text.age(row.tail)}"
    )
    known = [kind for kind in Kind if kind in group.counts]
    counts = [f"{_words(kind)} {text.count(count_of(frame, group, kind))}" for kind in known]
    danger = f"The next store here evicts a live checkpoint; {reasons.CURE}." if row.alarms else ""
    return what, states, "  ".join(counts), *([danger] if danger else [])


def _words(kind: Kind) -> str:
    return kind.replace("_", " ")
