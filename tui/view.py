# SPDX-License-Identifier: Apache-2.0
"""Draws a frame as lines of text: pure functions of the frame and the size.

Covers the header, the key bar and the choice of the view; what each shows is in ``views``. No
line is ever wider than asked for, and every screen is exactly as high.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from rich.cells import cell_len
from rich.text import Text

from tiercache.tui import advice, groups, notices, text
from tiercache.tui.feed import State
from tiercache.tui.frame import Frame
from tiercache.tui.keys import KEYS, Action
from tiercache.tui.state import View
from tiercache.tui.styles import CURSOR, DIM, HEAD, WARN
from tiercache.tui.trends import is_reduced, moment
from tiercache.tui.views import events, eviction, helping, overview, sequences, tiers

#: Below this there is room for the header and the spare slots of each group only.
MIN_WIDTH = 60
MIN_HEIGHT = 16
#: From this height each piece of advice has a row of its own, with its cure.
ROOMY = 30
MOST_ADVICE = 4
#: A report has no height, but long lists are cut to this many rows.
REPORT_ROWS = 200


class Screen(Protocol):
    """What a module of ``views`` offers."""

    def body(self, frame: Frame, width: int, room: int) -> list[Text]:
        """Lines below the header, which are cut to ``room``."""

    def rows(self, frame: Frame) -> int:
        """How many rows the list has."""

    def titles(self) -> tuple[str, ...]:
        """What the list can be sorted by."""

    def selected(self, frame: Frame) -> str:
        """The row under the cursor."""


VIEWS: Mapping[View, Screen] = {
    View.OVERVIEW: overview,
    View.SEQUENCES: sequences,
    View.EVICTION: eviction,
    View.TIERS: tiers,
    View.EVENTS: events,
}


def screen(frame: Frame, width: int, height: int) -> list[Text]:
    """Exactly ``height`` lines of exactly ``width`` cells: header, body, key bar."""
    small = width < MIN_WIDTH or height < MIN_HEIGHT
    top = _top(frame, width, height, small=small)
    room = max(height - len(top) - 1, 0)
    body = _body(frame, width, room, small=small)[:room]
    lines = [*top, *body, *[Text()] * (room - len(body)), _bottom(frame, width)]
    return [_fitted(line, width) for line in lines[: max(height, 0)]]


def report(frame: Frame, width: int) -> list[Text]:
    """All there is to say, as high as it gets; no line ends in a blank."""
    small = width < MIN_WIDTH
    frame = replace(frame, ui=replace(frame.ui, cursor=-1))
    top = _top(frame, width, REPORT_ROWS, small=small)
    lines = [_fitted(line, width) for line in top + _body(frame, width, REPORT_ROWS, small=small)]
    for line in lines:
        line.rstrip()
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def row_count(frame: Frame) -> int:
    """How many rows the list of the view has: ``ui.cursor`` is below that, or 0."""
    return 0 if _is_missing(frame) else VIEWS[frame.ui.view].rows(frame)


def selected(frame: Frame) -> str:
    """The row under the cursor as one line of text to copy; empty if there is none."""
    return "" if _is_missing(frame) else VIEWS[frame.ui.view].selected(frame)


def columns(frame: Frame) -> tuple[str, ...]:
    """Titles that the list of the view can be sorted by, in the order of the screen."""
    return VIEWS[frame.ui.view].titles()


def shown_group(frame: Frame) -> str | None:
    """The group whose eviction order is shown: the chosen one, or the one in need."""
    group = eviction.group(frame)
    return None if group is None else group.name


def _is_missing(frame: Frame) -> bool:
    latest = frame.latest
    missing = frame.status.state in (State.WAITING, State.NO_TIERCACHE)
    return missing or latest is None or not latest.groups


def _body(frame: Frame, width: int, room: int, *, small: bool) -> list[Text]:
    if frame.ui.helping:
        return helping.page(frame, width, room)
    if _is_missing(frame):
        return notices.missing(frame, width)
    if small and frame.ui.view is View.OVERVIEW:
        return groups.spare(groups.merged(groups.rows(frame)), frame, room)
    return VIEWS[frame.ui.view].body(frame, width, room)


def _top(frame: Frame, width: int, height: int, *, small: bool) -> list[Text]:
    """The header, what must be known before any number, and how full the tiers are."""
    lines = [_header(frame, width)]
    warning = notices.warning(frame)
    if warning is not None:
        lines.append(warning)
    if small or frame.ui.helping or _is_missing(frame):
        return lines
    if frame.ui.view is View.OVERVIEW and not frame.ui.zoomed:
        lines.extend(_bars(frame, width, height))
    return [*lines, *_advice(frame, width, height)]


def _header(frame: Frame, width: int) -> Text:
    state = text.cut(notices.state_words(frame), width - 2, frame.glyphs)
    room = max(width - cell_len(state) - 4, 0)
    left = ""
    for word in _words(frame):
        longer = f"{left}  {word}" if left else word
        if cell_len(longer) > room and left:
            break
        left = longer
    left = text.fit(text.cut(left, room, frame.glyphs), room)
    line = Text(f" {left}  ", style=HEAD)
    return line.append(f"{state} ", style=notices.state_style(frame))


def _words(frame: Frame) -> list[str]:
    """What is looked at; the less important words come last, as the width cuts them."""
    latest = frame.latest
    pool = None if latest is None else latest.pool
    if latest is None or pool is None:
        words = ["tiercache-top", frame.target]
    else:
        up = text.duration(moment(latest) - pool.started)
        workers = f"{pool.workers} worker{'' if pool.workers == 1 else 's'}"
        words = ["tiercache-top", pool.name, f"pid {pool.pid}", workers, f"up {up}"]
        words += [pool.writer] if pool.writer != "serve" else []
        words += [f"policy {pool.policy}", f"{pool.block_tokens} tok/block", pool.host]
        words += [f"tiercache {pool.tiercache}"]
    return [text.clean(word, frame.glyphs) for word in words if word]


def _bars(frame: Frame, width: int, height: int) -> list[Text]:
    """How full RAM and each tier are; where height is short, the first tiers only."""
    latest = frame.latest
    if latest is None:
        return []
    cells = max(min(width - 55, 100), 8)
    ram = tiers.ram_line(latest, cells, frame)
    lines = [] if ram is None else [ram]
    for tier in latest.tiers[: max((height - 12) // 4, 1)]:
        line = tiers.tier_line(tier, cells, frame)
        queued = "" if is_reduced(latest) else f", {text.count(tier.queued)} wait"
        line.append(f"  jobs {text.count(tier.jobs)}{queued}")
        lines.append(line)
    if not frame.is_live:
        for line in lines:
            line.stylize(DIM)
    return lines


def _advice(frame: Frame, width: int, height: int) -> list[Text]:
    if height >= ROOMY:
        return advice.lines(frame, width)[:MOST_ADVICE]
    line = advice.line(frame, width)
    return [] if line is None else [line]


def _bottom(frame: Frame, width: int) -> Text:
    """The filter while it is typed, what the last key did, or the keys."""
    ui = frame.ui
    if ui.filtering:
        typed = text.clean(ui.filter, frame.glyphs)
        # The end of a long filter is what is being typed.
        while cell_len(typed) > max(width - 34, 8):
            typed = typed[1:]
        line = Text(f" /{typed}", HEAD).append(" ", CURSOR)
        return line.append("  Enter keep  Esc clear  ^U empty", DIM)
    if ui.message:
        return Text(f" {text.clean(ui.message, frame.glyphs)}", WARN)
    return _key_bar(ui.view, width)


#: In the order in which they are left out, the last ones first.
BAR = (
    *(Action(view.value) for view in View),
    Action.HELP,
    Action.QUIT,
    Action.FILTER,
    Action.DETAIL,
    Action.PAUSE,
    Action.ZOOM,
    Action.SORT_RIGHT,
    Action.SAVE,
    Action.COPY,
    Action.FOLLOW,
    Action.RESET,
    Action.UNITS,
)


@lru_cache
def _key_bar(view: View, width: int) -> Text:
    by_action = {key.action: key for key in KEYS}
    bar = Text(" ")
    for action in _bar(view):
        key = by_action[action]
        current = action.value == view.value
        between = " " if key.shown[-1].isalpha() else ""
        entry = Text(key.shown, "bold reverse" if current else "bold")
        entry.append(f"{between}{key.word}")
        if bar.cell_len + entry.cell_len + 1 > width:
            break
        bar.append_text(entry).append("  ")
    return bar


def _bar(view: View) -> list[Action]:
    """The keys that matter here: those of the view before the general ones."""
    special = {View.EVICTION: [Action.NEXT_GROUP], View.EVENTS: [Action.FOLLOW]}
    mine = special.get(view, [])
    views = len(View)
    rest = [action for action in BAR[views:] if action not in mine]
    return [*BAR[:views], *mine, *rest]


def _fitted(line: Text, width: int) -> Text:
    """``line`` in exactly ``width`` cells."""
    # Appended, its own style becomes a span; rendering a text without spans forgets its style.
    fitted = Text().append_text(line)
    fitted.truncate(max(width, 0), overflow="crop", pad=True)
    return fitted
