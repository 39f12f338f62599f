# SPDX-License-Identifier: Apache-2.0
"""Draws a frame as lines of text: a pure function of the frame and the size.

Covers the arrangement; the tables are ``groups`` and ``flows``, the words ``notices``. No line
is ever wider than asked for, and every screen is exactly as high.
"""

from urllib.parse import urlsplit

from rich.text import Text

from tiercache.tui import flows, groups, notices, text
from tiercache.tui.feed import State
from tiercache.tui.frame import Frame
from tiercache.tui.keys import KEYS

#: Below this there is room for the header and the spare slots of each group only.
MIN_WIDTH = 60
MIN_HEIGHT = 16
#: Totals are cut to these lines (head included) before a row of the groups is cut.
MIN_FLOW_LINES = 4
STATE_STYLES = {
    State.WAITING: "bold yellow",
    State.LIVE: "bold green",
    State.STALE: "bold yellow",
    State.GONE: "bold red",
    State.NO_TIERCACHE: "bold red",
}


def screen(frame: Frame, width: int, height: int, *, helping: bool = False) -> list[Text]:
    """Exactly ``height`` lines of exactly ``width`` cells: header, body, key bar."""
    top = _top(frame, width)
    small = width < MIN_WIDTH or height < MIN_HEIGHT
    room = max(height - len(top) - 1, 0)
    full = notices.help_page(frame, width) if helping else _body(frame, width, room, small=small)
    body = full[:room] + [Text()] * (room - len(full))
    lines = (top + body + [_key_bar(frame)])[: max(height, 0)]
    return [_fitted(line, width) for line in lines]


def report(frame: Frame, width: int) -> list[Text]:
    """All there is to say, as high as it gets."""
    top = _top(frame, width)
    body = _body(frame, width, _full_height(frame), small=width < MIN_WIDTH)
    lines = [_fitted(line, width) for line in top + body]
    for line in lines:
        line.rstrip()
    return lines


def _body(frame: Frame, width: int, room: int, *, small: bool) -> list[Text]:
    latest = frame.latest
    if latest is None or not latest.groups or frame.status.state is State.NO_TIERCACHE:
        return notices.missing(frame, width)
    if small:
        return groups.spare(groups.rows(frame, merge=True), room)
    return _tables(frame, width, room)


def _tables(frame: Frame, width: int, room: int) -> list[Text]:
    """Groups above totals. Short of room, first equal groups share a row, then totals go."""
    rows = groups.rows(frame)
    if _full_height(frame) > room:
        rows = groups.rows(frame, merge=True)
    totals = flows.table(frame, width, max(room - len(rows) - 2, MIN_FLOW_LINES))
    lines = room - len(totals) - 1
    table = groups.table(rows, lines, width, frame.glyphs, fresh=frame.is_live)
    return [*table, _rule(frame, width), *totals]


def _full_height(frame: Frame) -> int:
    """Lines of both tables with nothing left out: two heads and a rule come to the rows."""
    return len(groups.rows(frame)) + len(flows.FLOWS) + 3


def _top(frame: Frame, width: int) -> list[Text]:
    note = notices.older(frame)
    return [_header(frame, width), _rule(frame, width) if note is None else note]


def _header(frame: Frame, width: int) -> Text:
    latest = frame.latest
    models = ", ".join(latest.models) if latest is not None else ""
    where = urlsplit(frame.url).netloc
    words = [word for word in ("tiercache-top", models, where) if word]
    left = text.clean("  ".join(words), frame.glyphs)
    state = _state_words(frame)
    line = Text(f" {text.fit(left, width - len(state) - 3)} ", style="bold")
    return line.append(f"{state} ", style=STATE_STYLES[frame.status.state])


def _state_words(frame: Frame) -> str:
    status = frame.status
    match status.state:
        case State.LIVE:
            words = f"LIVE {frame.interval:g}s"
        case State.NO_TIERCACHE:
            words = status.state.value
        case _:
            words = f"{status.state} {text.duration(frame.now - status.since)}"
    if frame.paused_since is None:
        return words
    paused = f"PAUSED {text.duration(frame.now - frame.paused_since)}"
    return paused if frame.is_live else f"{paused}, {words}"


def _key_bar(frame: Frame) -> Text:
    bar = Text(" ")
    for key in KEYS:
        bar.append(key.shown, style="bold reverse").append(f" {key.word}  ")
    return bar.append(f"sorted by {frame.sort}")


def _rule(frame: Frame, width: int) -> Text:
    return Text(frame.glyphs.rule * max(width, 0))


def _fitted(line: Text, width: int) -> Text:
    """``line`` in exactly ``width`` cells."""
    # Appended, its own style becomes a span; rendering a text without spans forgets its style.
    fitted = Text().append_text(line)
    fitted.truncate(max(width, 0), overflow="crop", pad=True)
    return fitted
