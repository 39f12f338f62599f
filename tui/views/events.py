# SPDX-License-Identifier: Apache-2.0
"""What happened, the newest last: one row for what happened to several groups at once."""

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from typing import NamedTuple

from rich.text import Text

from tiercache.stats.model import Event, Kind
from tiercache.tui import notices, reasons, table, text
from tiercache.tui.filters import Facts, matching
from tiercache.tui.frame import Frame
from tiercache.tui.styles import BAD
from tiercache.tui.table import Column, number

FIELDS = ("kind", "seq", "group", "tier")
#: The newest events that the view looks at; ``tiercache events`` has them all.
MOST_EVENTS = 2000
#: Entries of one checkpoint are told of one after the other; they are one row.
TOGETHER_S = 0.25
BAD_KINDS = frozenset({Kind.EVICTED_LIVE, Kind.REFUSED, Kind.FAILED, Kind.TIER_FAILED})


class Row(NamedTuple):
    """Events that differ in their group alone; thousands are made, and a screenful is shown."""

    events: Rows[Event]

    @property
    def event(self) -> Event:
        return self.events[0]

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(event.group for event in self.events if event.group is not None)

    @property
    def entries(self) -> int:
        return sum(event.count for event in self.events)

    @property
    def nbytes(self) -> int:
        return sum(event.nbytes for event in self.events)

    @property
    def tokens(self) -> int:
        """0 if the events do not agree on that."""
        first = self.event.tokens
        return first if all(event.tokens == first for event in self.events) else 0

    @property
    def is_bad(self) -> bool:
        return self.event.kind in BAD_KINDS


def together(events: Iterable[Event]) -> list[Row]:
    """Rows of neighbouring events that are one happening."""
    runs: list[list[Event]] = []
    seen: set[str | None] = set()
    for event in events:
        if event.group not in seen and runs and _continues(runs[-1][0], event):
            runs[-1].append(event)
            seen.add(event.group)
        else:
            runs.append([event])
            seen = {None, event.group}
    return [Row(run) for run in runs]


def _continues(first: Event, event: Event) -> bool:
    """Whether they are of one happening; what belongs to no group is one by itself."""
    return (
        event.kind is first.kind
        and event.sequence == first.sequence
        and event.tier == first.tier
        and first.group is not None
        and abs(event.when - first.when) <= TOGETHER_S
    )


def _groups(row: Row) -> str:
    return reasons.span(row.groups) or text.UNKNOWN


def what(row: Row) -> str:
    """What happened, in words."""
    event = row.event
    size, tokens = text.size(row.nbytes or None), text.tokens(row.tokens or None)
    took = "" if event.seconds is None else f", {text.latency(event.seconds)}"
    tier = event.tier or "a tier"
    told = {
        Kind.RESTORED: f"from {event.tier or 'ram'}: {tokens} tok{took}",
        Kind.MISSED: f"{tokens} tok had to be computed",
        Kind.STORED: f"from the device: {size}{took}",
        Kind.SPILLED: f"to {tier}: {size}{took}",
        Kind.PROMOTED: f"to RAM from {tier}: {size}{took}",
        Kind.TIER_FAILED: f"{tier}: no read, no write, or not verified",
    }
    if event.kind in told:
        return told[event.kind]
    return SAID[event.kind]


SAID = {
    Kind.EVICTED_LIVE: "took the slot of a LIVE one",
    Kind.EVICTED_DEMOTED: "took a superseded slot",
    Kind.DEMOTED: "superseded: goes first",
    Kind.STRANDED: "no checkpoint serves these blocks",
    Kind.REFUSED: "no room: every slot is in use",
    Kind.FAILED: "the copy from the device failed",
    Kind.RESET: "the cache was emptied",
}


def _alarm(row: Row) -> str:
    return BAD if row.is_bad else ""


def _kind(row: Row) -> str:
    return row.event.kind.replace("_", " ")


def _sequence(row: Row) -> str:
    return reasons.name(row.event.sequence)


def _what(row: Row) -> str:
    return f"{what(row)} !" if row.is_bad else what(row)


COLUMNS: Rows[Column[Row]] = (
    Column("TIME", 9, 0, lambda r: text.clock(r.event.when), lambda r: r.event.when, left=True),
    Column("EVENT", 16, 1, _kind, _kind, left=True, style=_alarm),
    Column("SEQ", 8, 2, _sequence, _sequence, left=True),
    Column("GROUP", 8, 3, _groups, _groups, left=True),
    number("COUNT", 6, 5, lambda r: r.entries),
    number("TOKENS", 8, 6, lambda r: r.tokens or None, text.tokens),
    number("BYTES", 9, 7, lambda r: r.nbytes or None, text.size),
    Column("WHAT", 25, 4, _what, left=True, grows=True, style=_alarm),
)


def listed(frame: Frame) -> tuple[list[Row], str, int]:
    """What the filter leaves, what is wrong with it, and how many rows there are without it."""
    everything = together(frame.log[-MOST_EVENTS:])
    found = matching(frame.ui.filter, everything, _facts, FIELDS)
    rows = [everything[i] for i in found.rows]
    return table.ordered(rows, COLUMNS, frame), found.problem, len(everything)


def _facts(row: Row) -> Facts:
    event = row.event
    fields = {
        "kind": (event.kind.value, _kind(row)),
        "seq": (_sequence(row),),
        "group": row.groups,
        "tier": (event.tier or "",),
    }
    return Facts(f"{_kind(row)} {_sequence(row)} {' '.join(row.groups)} {what(row)}", fields)


def rows(frame: Frame) -> int:
    return len(listed(frame)[0])


def titles() -> tuple[str, ...]:
    return table.titles(COLUMNS)


def selected(frame: Frame) -> str:
    shown = listed(frame)[0]
    at = table.cursor(frame, len(shown))
    return "" if at < 0 else table.plain(shown[at], COLUMNS, frame)


def body(frame: Frame, width: int, room: int) -> list[Text]:
    """The log around the cursor, and on demand one event at length."""
    shown, problem, everything = listed(frame)
    follows = "" if frame.ui.follow else "  f follows"
    words = f"{title(frame)}{follows}"
    head = table.heading(frame, width, words, len(shown), everything, problem=problem)
    if not frame.log:
        return [head, *notices.not_told(frame, width, "events")]
    at = table.cursor(frame, len(shown))
    below = _at_length(frame, shown[at], width) if frame.ui.detail and at >= 0 else []
    lines = max(room - 1 - len(below), 5)
    return [head, *table.listing(shown, COLUMNS, frame, width, lines), *below]


def title(frame: Frame) -> str:
    """The head of the log; what was missed is always said."""
    lost = f"{text.count(frame.events_lost)} lost" if frame.events_lost else "none lost"
    total = None if frame.latest is None else frame.latest.events_total
    return f"EVENTS {text.count(total)} in all, {lost}"


def newest(frame: Frame, width: int, room: int) -> list[Text]:
    """The last rows, without a head: for the overview."""
    recent = together(frame.log[-20 * max(room, 0) :]) if room > 0 else []
    fitted = table.fitting(COLUMNS, width)
    chosen = recent[-room:] if room > 0 else []
    unselected = (table.row_line(row, fitted, frame) for row in chosen)
    return list(unselected)


def _at_length(frame: Frame, row: Row, width: int) -> list[Text]:
    event = row.event
    first = f"#{event.number} {_kind(row)} at {text.clock(event.when)}: {what(row)}"
    second = (
        f"conversation {_sequence(row)}, groups {', '.join(row.groups) or text.UNKNOWN}, "
        f"tier {event.tier or text.UNKNOWN}"
    )
    third = (
        f"{text.count(row.entries)} in number, {text.size(row.nbytes)}, at token "
        f"{text.tokens(row.tokens or None)}, took {text.latency(event.seconds)}"
    )
    return [Text(), *notices.paragraphs(frame, width, first, second, third)]
