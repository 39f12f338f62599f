# SPDX-License-Identifier: Apache-2.0
"""What is said in words about the numbers: how fresh they are, and what is missing, and why."""

from collections.abc import Sequence
from functools import lru_cache
from textwrap import wrap

from rich.text import Text

from tiercache.stats.model import Phase, Snapshot
from tiercache.tui import text
from tiercache.tui.feed import State
from tiercache.tui.frame import Frame
from tiercache.tui.styles import BAD, GOOD, WARN
from tiercache.tui.trends import is_reduced

#: Two lines, so that a copy of them runs even from a screen of 60 columns.
ENABLE = (
    "  vllm serve MODEL \\",
    '    --kv-transfer-config "$(tiercache connector-config)"',
)
TORN = "read in the middle of a change: numbers may not fit together"
STATE_STYLES = {
    State.WAITING: WARN,
    State.LIVE: GOOD,
    State.IDLE: GOOD,
    State.STALE: WARN,
    State.GONE: BAD,
    State.CLOSED: WARN,
    State.REPLAY: GOOD,
    State.NO_TIERCACHE: BAD,
}


def state_words(frame: Frame) -> str:
    """The word at the top right: how far the numbers can be believed."""
    status = frame.status
    match status.state:
        case State.LIVE:
            scraped = frame.latest is not None and frame.latest.source == "metrics"
            words = f"LIVE {frame.interval:g}s{' SCRAPE' if scraped else ''}"
        case State.REPLAY:
            words = f"REPLAY {status.reason}".rstrip()
        case State.NO_TIERCACHE:
            words = status.state.value
        case _:
            words = f"{status.state} {text.duration(frame.now - status.since)}"
    if frame.ui.paused_since is None:
        return text.clean(words, frame.glyphs)
    paused = f"PAUSED {text.duration(frame.now - frame.ui.paused_since)}"
    return paused if frame.is_live else text.clean(f"{paused}, {words}", frame.glyphs)


def state_style(frame: Frame) -> str:
    paused = frame.ui.paused_since is not None and frame.is_live
    return WARN if paused else STATE_STYLES[frame.status.state]


def warning(frame: Frame) -> Text | None:
    """One line above numbers that are not fresh, or that may not fit together; else None."""
    words = _warning(frame)
    return None if words is None else Text(f" {text.clean(words, frame.glyphs)}", style=WARN)


def _warning(frame: Frame) -> str | None:
    latest = frame.latest
    if latest is None or not latest.groups:
        return None
    status, age = frame.status, text.duration(frame.now - latest.taken)
    ended = {
        State.STALE: f"{status.reason or _still(latest)}; "
        f"nothing new for {text.duration(frame.now - status.since)}",
        State.GONE: f"{status.reason or _died(frame)}; its last numbers, {age} old",
        State.CLOSED: f"{status.reason or 'the server has ended'}; its last numbers, {age} old",
    }
    if status.state in ended:
        return ended[status.state]
    return TORN if latest.torn else None


def _still(latest: Snapshot) -> str:
    failed = latest.phase is Phase.FAILED
    return "the server's probe met a fault and turned itself off" if failed else "no newer numbers"


def _died(frame: Frame) -> str:
    pool = None if frame.latest is None else frame.latest.pool
    return "nothing answers any more" if pool is None else f"process {pool.pid} has died"


def missing(frame: Frame, width: int) -> list[Text]:
    """Why there are no numbers, since when, and what would bring them."""
    if frame.status.state is State.NO_TIERCACHE:
        return _no_tiercache(frame, width)
    if frame.latest is None:
        return _waiting(frame, width)
    return paragraphs(
        frame,
        width,
        f"{frame.target} has tiercache, but no group has reported.",
        *([f"  {frame.status.reason}"] if frame.status.reason else []),
        "",
        "The engine reports with its first step: send a request.",
    )


def not_told(frame: Frame, width: int, what: str) -> list[Text]:
    """In place of a list that this source does not know."""
    if frame.latest is not None and is_reduced(frame.latest):
        return paragraphs(
            frame,
            width,
            "",
            f"A metrics page does not tell {what}.",
            "On the server's own machine, run tiercache-top without --url to see them.",
        )
    return paragraphs(frame, width, "", f"No {what} yet.")


def _waiting(frame: Frame, width: int) -> list[Text]:
    status = frame.status
    return paragraphs(
        frame,
        width,
        f"Waiting for {frame.target}",
        f"  {status.reason}",
        f"  since {text.clock(status.since)} ({text.duration(frame.now - status.since)})",
        "",
        "Start a server with tiercache:",
        *ENABLE,
        "look at a pool that plays conversations:",
        "  tiercache-top --demo",
        "or say where a server runs:",
        "  tiercache-top --url http://HOST:PORT/metrics",
    )


def _no_tiercache(frame: Frame, width: int) -> list[Text]:
    return paragraphs(
        frame,
        width,
        f"{frame.target} answers, but not with tiercache:",
        f"  {frame.status.reason}",
        f"  since {text.clock(frame.status.since)}",
        "",
        "Start the server with the cache:",
        *ENABLE,
        "and without --disable-log-stats, which takes the metrics away.",
    )


def paragraphs(frame: Frame, width: int, *parts: str) -> list[Text]:
    """Wrapped lines, with what came from outside made printable."""
    shown = (text.clean(part, frame.glyphs) for part in parts)
    return [Text(f" {line}") for part in shown for line in wrapped(part, width - 2)]


@lru_cache
def wrapped(paragraph: str, width: int) -> Sequence[str]:
    """The lines of a paragraph; those that follow keep the indent of the first."""
    indent = " " * (len(paragraph) - len(paragraph.lstrip()))
    width = max(width, len(indent) + 1)
    return wrap(paragraph, width, subsequent_indent=indent, break_on_hyphens=False) or [""]
