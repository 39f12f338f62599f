# SPDX-License-Identifier: Apache-2.0
"""Every key of the monitor, once: what it does, its word in the key bar, its line in the help.

Covers the table; what the actions do is ``interact``.
"""

from enum import StrEnum
from typing import NamedTuple


class Action(StrEnum):
    """What a key can start."""

    OVERVIEW = "overview"
    SEQUENCES = "sequences"
    EVICTION = "eviction"
    TIERS = "tiers"
    EVENTS = "events"
    NEXT_VIEW = "next view"
    LAST_VIEW = "last view"
    HELP = "help"
    QUIT = "quit"
    PAUSE = "pause"
    SLOWER = "slower"
    FASTER = "faster"
    BACK = "back"
    FILTER = "filter"
    SORT_LEFT = "sort left"
    SORT_RIGHT = "sort right"
    INVERT = "invert"
    UP = "up"
    DOWN = "down"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"
    TOP = "top"
    BOTTOM = "bottom"
    DETAIL = "detail"
    LAST_GROUP = "last group"
    NEXT_GROUP = "next group"
    ZOOM = "zoom"
    FOLLOW = "follow"
    SAVE = "save"
    COPY = "copy"
    RESET = "reset"
    UNITS = "units"
    THEME = "theme"


class Key(NamedTuple):
    """One line of the table; ``keys`` are the toolkit's names, ``shown`` is what is printed."""

    keys: tuple[str, ...]
    shown: str
    action: Action
    word: str
    help: str


KEYS = (
    Key(("1",), "1", Action.OVERVIEW, "Ovw", "slots, restores, events: all at once"),
    Key(("2",), "2", Action.SEQUENCES, "Seq", "conversations, and what of them can be restored"),
    Key(("3",), "3", Action.EVICTION, "Evict", "who is evicted next, and what would be lost"),
    Key(("4",), "4", Action.TIERS, "Tiers", "secondary tiers: room, speed, index"),
    Key(("5",), "5", Action.EVENTS, "Events", "what happened, the newest last"),
    Key(("tab",), "Tab", Action.NEXT_VIEW, "next", "the next view (Shift-Tab: the one before)"),
    Key(("shift+tab",), "S-Tab", Action.LAST_VIEW, "before", "the view before"),
    Key(("slash",), "/", Action.FILTER, "filter", "words, kind:evict seq:e00 group:g7; ! inverts"),
    Key(("less_than_sign",), "<", Action.SORT_LEFT, "sort", "sort by the column to the left"),
    Key(("greater_than_sign",), ">", Action.SORT_RIGHT, "sort", "sort by the column to the right"),
    Key(("I",), "I", Action.INVERT, "invert", "turn the order round"),
    Key(("up", "k"), "k", Action.UP, "up", "one row up (also: Up)"),
    Key(("down", "j"), "j", Action.DOWN, "down", "one row down (also: Down)"),
    Key(("pageup",), "PgUp", Action.PAGE_UP, "page", "a page up"),
    Key(("pagedown",), "PgDn", Action.PAGE_DOWN, "page", "a page down"),
    Key(("home", "g"), "g", Action.TOP, "top", "the first row (also: Home)"),
    Key(("end", "G"), "G", Action.BOTTOM, "end", "the last row (also: End)"),
    Key(("enter",), "Enter", Action.DETAIL, "detail", "the row under the cursor at length"),
    Key(("escape",), "Esc", Action.BACK, "back", "leave help, detail, zoom; clear the filter"),
    Key(("left_square_bracket",), "[", Action.LAST_GROUP, "group", "the group before"),
    Key(("right_square_bracket",), "]", Action.NEXT_GROUP, "group", "the next group"),
    Key(("z",), "z", Action.ZOOM, "zoom", "the list alone, as high as the screen"),
    Key(("f",), "f", Action.FOLLOW, "follow", "keep to the newest event, or stay"),
    Key(("space",), "Space", Action.PAUSE, "pause", "hold the picture, or go on"),
    Key(("plus",), "+", Action.SLOWER, "slower", "look half as often (at least every 60 s)"),
    Key(("minus",), "-", Action.FASTER, "faster", "look twice as often (at most every 0.25 s)"),
    Key(("r",), "r", Action.RESET, "reset", "count totals from now; again: from the start"),
    Key(("t",), "t", Action.UNITS, "units", "tokens or bytes"),
    Key(("T",), "T", Action.THEME, "theme", "ansi-dark, ansi-light, textual-dark"),
    Key(("s",), "s", Action.SAVE, "save", "this picture as text, its numbers as JSON, to files"),
    Key(("c",), "c", Action.COPY, "copy", "the row to the clipboard (or select with Shift held)"),
    Key(("question_mark", "f1"), "?", Action.HELP, "help", "show or leave this page (also: F1)"),
    Key(("q", "ctrl+c"), "q", Action.QUIT, "quit", "end the monitor (also: Ctrl-C)"),
)

#: Actions by the toolkit's name of a key.
ACTIONS = {name: key.action for key in KEYS for name in key.keys}
