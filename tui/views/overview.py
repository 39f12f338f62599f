# SPDX-License-Identifier: Apache-2.0
"""The overview: slots per group, restores per source and the newest events.

Covers the arrangement by size: short of height, events shrink first, then restores, then groups
that look the same share a row. From 120 columns groups and restores are side by side; from
160x40 traffic, conversations and the next victims are there, too.
"""

from collections.abc import Sequence

from rich.text import Text

from tiercache.tui import flows, groups, reasons, restores, table, text
from tiercache.tui.frame import Frame
from tiercache.tui.trends import RAM, Counter, of_tier, rate, restored, steps
from tiercache.tui.views import events, eviction, sequences

SIDE_BY_SIDE = 120
EVERYTHING = (160, 40)
#: With their rule and head: below that restores do not shrink before groups share rows.
MIN_RESTORES = 4
#: A rule and two rows; fewer events are not worth a rule.
MIN_EVENTS = 3
#: In a report, which has no height that would limit them.
REPORTED_EVENTS = 20
#: Rows of conversations beside or below the other panels, and how many lines they need to be free.
CONVERSATIONS = 8
ROOM_FOR_CONVERSATIONS = 20
#: Of the groups beside restores, with the line between.
MIN_LEFT = 79
#: Of a line of traffic without its sparkline.
TRAFFIC_WIDTH = 33


def rows(frame: Frame) -> int:
    return len(groups.rows(frame))


def titles() -> tuple[str, ...]:
    return table.titles(groups.COLUMNS)


def selected(frame: Frame) -> str:
    shown = groups.rows(frame)
    at = table.cursor(frame, len(shown))
    return "" if at < 0 else table.plain(shown[at], groups.COLUMNS, frame)


def body(frame: Frame, width: int, room: int) -> list[Text]:
    """As much as the size allows."""
    shown = groups.rows(frame)
    head = heading(frame, width, shown)
    if frame.ui.zoomed:
        return [head, *groups.lines(shown, frame, width, room - 1), *_detail(frame, width)]
    detail = _detail(frame, width)
    room -= 1 + len(detail)
    if width >= SIDE_BY_SIDE and restores.known(frame):
        return [head, *_wide(shown, frame, width, room, detail)]
    return [head, *_stacked(shown, frame, width, room, detail)]


def heading(frame: Frame, width: int, shown: Sequence[groups.Row]) -> Text:
    """Which group loses a live entry next, unless the filter has something to say."""
    latest = frame.latest
    every = () if latest is None else latest.groups
    problem = groups.found(frame).problem
    words = reasons.next_loss(every) if frame.is_live else reasons.least_spare(every)
    note = groups.legend_beside(shown, frame, width)
    return table.heading(frame, width, words, len(shown), len(every), problem=problem, note=note)


def _detail(frame: Frame, width: int) -> list[Text]:
    return groups.detail(frame, width) if frame.ui.detail else []


def _stacked(
    shown: Sequence[groups.Row], frame: Frame, width: int, room: int, detail: Sequence[Text]
) -> list[Text]:
    """One panel above the other."""
    kept = list(shown)
    if len(kept) + 1 + MIN_RESTORES > room:
        kept = groups.merged(shown)
    below = max(room - len(kept) - 1, 0)
    lower = _counted(frame, width, below)
    table_room = room - len(lower)
    rest = room - min(len(kept) + 1, table_room) - len(lower)
    people = _conversations_alone(frame, width) if rest >= ROOM_FOR_CONVERSATIONS else []
    return [
        *groups.lines(kept, frame, width, table_room),
        *detail,
        *lower,
        *people,
        *_events(frame, width, rest - len(people)),
    ]


def _conversations_alone(frame: Frame, width: int) -> list[Text]:
    """Those in trouble and the latest."""
    shown, _ = sequences.listed(frame)
    if not shown:
        return []
    fitted = sequences.fitting(frame, width)
    rows = [table.row_line(row, fitted, frame) for row in shown[:CONVERSATIONS]]
    title = table.rule(frame, width, sequences.totals(frame), "2 shows all")
    return [title, table.head(fitted, frame), *rows]


def _counted(frame: Frame, width: int, room: int) -> list[Text]:
    """Restores per source under a rule, or counters where restores are not told."""
    if room < 3:
        return []
    if restores.known(frame):
        return [_restores_rule(frame, width), *restores.lines(frame, width, room - 1)]
    return [table.rule(frame, width, "COUNTERS"), *flows.lines(frame, width, room - 1)]


def _restores_rule(frame: Frame, width: int) -> Text:
    """Which conversation cannot be restored, if there is one."""
    latest = frame.latest
    if latest is None:
        return table.rule(frame, width)
    lost = reasons.stranded(latest.sequences)
    if not lost:
        running = f"{text.count(latest.running)} requests open"
        return table.rule(frame, width, f"RESTORES {flows.since(frame).lower()}", running)
    who = reasons.name(lost[0].number)
    others = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    verb = "cannot" if frame.is_live else "could not"
    words = f"{who}{others} {verb} be restored: {reasons.short(lost[0])}"
    return table.rule(frame, width, words, "2 shows why")


def _events(frame: Frame, width: int, room: int) -> list[Text]:
    if room < MIN_EVENTS or not frame.log:
        return []
    title = events.title(frame)
    most = room - 1 if frame.ui.cursor >= 0 else min(room - 1, REPORTED_EVENTS)
    newest = events.newest(frame, width, most)
    return [table.rule(frame, width, title, "5 shows all"), *newest]


def _wide(
    shown: Sequence[groups.Row], frame: Frame, width: int, room: int, detail: Sequence[Text]
) -> list[Text]:
    """Groups and restores side by side; with enough room everything else below."""
    whole = width >= EVERYTHING[0] and room >= EVERYTHING[1] - 8
    right = max(min(restores.width_beside(frame), width - MIN_LEFT), 56 if whole else 41)
    left = width - right - 3
    kept = list(shown) if len(shown) + 1 <= room else groups.merged(shown)
    upper = min(max(len(kept) + 1, 9), room)
    rights = restores.beside(frame, right, upper)
    lines = [*beside(frame, groups.lines(kept, frame, left, upper), rights, left), *detail]
    if whole:
        lines.extend(_lower(frame, width, left, right))
    return [*lines, *_events(frame, width, room + len(detail) - len(lines))]


def beside(frame: Frame, lefts: Sequence[Text], rights: Sequence[Text], width: int) -> list[Text]:
    """Two panels with a line between them."""
    lines = []
    for i in range(max(len(lefts), len(rights))):
        left = lefts[i].copy() if i < len(lefts) else Text()
        left.truncate(width, overflow="crop", pad=True)
        line = Text().append_text(left).append(f" {frame.glyphs.between} ")
        lines.append(line.append_text(rights[i]) if i < len(rights) else line)
    return lines


def _lower(frame: Frame, width: int, left: int, right: int) -> list[Text]:
    traffic = _traffic(frame, left)
    counters = flows.lines(frame, right, max(len(traffic), 6))
    span = flows.span(frame.history, frame.interval, left - TRAFFIC_WIDTH).lower()
    lines = [
        _two_heads(frame, width, left, f"TRAFFIC  {span}", "COUNTERS"),
        *beside(frame, traffic, counters, left),
    ]
    if frame.latest is None or not frame.latest.sequences:
        return lines
    return [*lines, *_conversations(frame, width, left, right)]


def _two_heads(frame: Frame, width: int, left: int, first: str, second: str) -> Text:
    """A line across both panels, with a title for each."""
    line = table.rule(frame, left + 2, first)
    return line.append_text(table.rule(frame, width - left - 2, second))


def _traffic(frame: Frame, width: int) -> list[Text]:
    """Bytes per second of every tier, as far back as there are cells."""
    latest = frame.latest
    names = () if latest is None else [tier.name for tier in latest.tiers]
    counters: list[tuple[str, str, Counter]] = [(RAM, "restored", restored(RAM, "nbytes"))]
    for name in names:
        counters.append((name, "read", of_tier(name, "loaded_bytes")))
        counters.append((name, "written", of_tier(name, "stored_bytes")))
    return [_traffic_line(name, way, counter, frame, width) for name, way, counter in counters]


def _traffic_line(name: str, way: str, counter: Counter, frame: Frame, width: int) -> Text:
    spark = max(width - TRAFFIC_WIDTH, 0)
    per_second = rate(frame.history, counter) if frame.is_live else None
    now = text.UNKNOWN if per_second is None else f"{text.size(per_second)}/s"
    shown = text.cut(text.clean(name, frame.glyphs), 9, frame.glyphs)
    line = Text(f" {text.fit(shown, 10)}{text.fit(way, 9)}{text.right(now, 10)}  ")
    grown = steps(frame.history, counter, spark)
    return line.append(text.sparkline(grown, spark, frame.glyphs.levels))


def _conversations(frame: Frame, width: int, left: int, right: int) -> list[Text]:
    """The conversations in trouble and the latest, beside who is evicted next."""
    shown, _ = sequences.listed(frame)
    fitted = sequences.fitting(frame, left)
    rows = [table.row_line(row, fitted, frame) for row in shown[:CONVERSATIONS]]
    group = eviction.group(frame)
    victims = table.fitting(eviction.COLUMNS, right)
    order = [table.row_line(row, victims, frame) for row in eviction.order(frame)[:CONVERSATIONS]]
    heads = [table.head(fitted, frame)], [table.head(victims, frame)]
    name = "" if group is None else f"NEXT TO GO in {group.name} (3 shows all)"
    return [
        _two_heads(frame, width, left, sequences.totals(frame), name),
        *beside(frame, [*heads[0], *rows], [*heads[1], *order], left),
    ]
