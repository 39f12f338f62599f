# SPDX-License-Identifier: Apache-2.0
"""What is said in words: what is missing and how to get it, and the help page."""

from textwrap import wrap

from rich.text import Text

from tiercache.tui import text
from tiercache.tui.feed import State
from tiercache.tui.frame import Frame
from tiercache.tui.keys import KEYS

#: Two lines, so that a copy of them runs even from a screen of 60 columns.
ENABLE = (
    "  vllm serve MODEL \\",
    '    --kv-transfer-config "$(tiercache connector-config)"',
)
KEY_WIDTH = 9

MEANINGS = (
    ("spare", "free + demoted: how many stores until a live entry is evicted"),
    ("demoted", "states that a later one of the conversation replaced; first to go"),
    ("busy", "pinned by a transfer, or being stored; cannot be evicted"),
    ("lost", "tokens whose attention blocks were here, but no state to go with"),
    ("PER SEC", "mean over the last 10 s"),
    ("-", "not reported"),
    ("LIVE", "the numbers are fresh. An engine reports when it steps, so an idle one stands still"),
    ("STALE", "no newer numbers for a while"),
    ("GONE", "nothing listens there any more"),
)


def missing(frame: Frame, width: int) -> list[Text]:
    """Why there are no numbers, since when, and what would bring them."""
    if frame.status.state is State.NO_TIERCACHE:
        return _no_tiercache(frame, width)
    if frame.latest is None or not frame.is_live:
        return _waiting(frame, width)
    return _paragraphs(
        width,
        f"{text.clean(frame.url, frame.glyphs)} has tiercache, but no group has reported.",
        "The engine reports with its first step: send a request.",
    )


def older(frame: Frame) -> Text | None:
    """One line above numbers that are not fresh, or None."""
    status = frame.status
    latest = frame.latest
    if status.state not in (State.STALE, State.GONE) or latest is None or not latest.groups:
        return None
    age = text.duration(frame.now - latest.taken)
    reason = text.clean(status.reason, frame.glyphs)
    line = f" {reason} since {text.clock(status.since)}; numbers are {age} old"
    return Text(line, style="bold yellow")


def help_page(frame: Frame, width: int) -> list[Text]:
    keys = [line for key in KEYS for line in _entry(key.shown, key.help, width)]
    words = [line for word, meaning in MEANINGS for line in _entry(word, meaning, width)]
    source = f"Every {frame.interval:g}s from {text.clean(frame.url, frame.glyphs)}"
    return [
        Text(" KEYS", style="bold"),
        *keys,
        Text(),
        Text(" WORDS", style="bold"),
        *words,
        Text(),
        *_paragraphs(width, source),
    ]


def _waiting(frame: Frame, width: int) -> list[Text]:
    status = frame.status
    return _paragraphs(
        width,
        f"Waiting for {text.clean(frame.url, frame.glyphs)}",
        f"  {text.clean(status.reason, frame.glyphs)}",
        f"  since {text.clock(status.since)} ({text.duration(frame.now - status.since)})",
        "",
        "Start a server with tiercache:",
        *ENABLE,
        "or say where one runs:",
        "  tiercache-top --url http://HOST:PORT/metrics",
    )


def _no_tiercache(frame: Frame, width: int) -> list[Text]:
    return _paragraphs(
        width,
        f"{text.clean(frame.url, frame.glyphs)} answers, but not with tiercache:",
        f"  {text.clean(frame.status.reason, frame.glyphs)}",
        f"  since {text.clock(frame.status.since)}",
        "",
        "Start the server with the cache:",
        *ENABLE,
        "and without --disable-log-stats, which takes the metrics away.",
    )


def _paragraphs(width: int, *paragraphs: str) -> list[Text]:
    return [Text(f" {line}") for paragraph in paragraphs for line in _wrapped(paragraph, width - 2)]


def _entry(word: str, meaning: str, width: int) -> list[Text]:
    lines = _wrapped(meaning, width - KEY_WIDTH - 3)
    heads = [word, *[""] * (len(lines) - 1)]
    return [
        Text(f"  {text.fit(head, KEY_WIDTH)}{line}")
        for head, line in zip(heads, lines, strict=True)
    ]


def _wrapped(paragraph: str, width: int) -> list[str]:
    """The lines of a paragraph; those that follow keep the indent of the first."""
    indent = " " * (len(paragraph) - len(paragraph.lstrip()))
    width = max(width, len(indent) + 1)
    return wrap(paragraph, width, subsequent_indent=indent, break_on_hyphens=False) or [""]
