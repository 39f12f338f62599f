# SPDX-License-Identifier: Apache-2.0
"""The page of help: the words of the current view first, then the keys."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from tiercache.tui import notices, text
from tiercache.tui.frame import Frame
from tiercache.tui.keys import KEYS
from tiercache.tui.state import View
from tiercache.tui.styles import HEAD

WORD_WIDTH = 11
KEY_WIDTH = 6
#: Two columns of keys with their explanation need this much.
MIN_COLUMN = 58

Entries = Sequence[tuple[str, str]]

GENERAL: Entries = (
    ("checkpoint", "recurrent state at one position; a restore must end at one"),
    ("spare", "free + demoted: stores a group takes before it evicts a live entry"),
    ("demoted", "a later checkpoint of the conversation replaced it: first to go"),
    ("stranded", "attention blocks without the checkpoint they need: of no use"),
    ("-", "not reported, or not known"),
)
OF_VIEW: dict[View, Entries] = {
    View.OVERVIEW: (
        ("NEXT", "what the next store takes: a free slot, a demoted one, a LIVE one"),
        ("BUSY", "being stored, or pinned by a transfer: cannot be evicted"),
        ("TAIL", "how long ago the live entry that goes first was used"),
        ("SHARE", "of all requests, those restored from there. NOW: mean over 10 s"),
    ),
    View.SEQUENCES: (
        ("SEQ", "a conversation: prompts that continue each other"),
        ("CACHED", "tokens whose attention blocks are kept in RAM or a tier"),
        ("RESTORABLE", "as far as a checkpoint reaches them; ! when that is nothing"),
        ("STATES", "checkpoints in RAM, live + demoted"),
        ("WHY", "the entry that is missing, and whose store took its slot"),
    ),
    View.EVICTION: (
        ("#", "how many stores come before the one that takes it"),
        ("AT TOKEN", "where in its conversation the entry ends"),
        ("BELOW", "the tier that has a copy"),
        ("IF EVICTED", "RECOMPUTE: there is no copy. reload: read from BELOW, ~ estimated"),
    ),
    View.TIERS: (
        ("p99", "99 of 100 restores took less than that"),
        ("waiting", "entries that are yet to be written"),
        ("declined", "stores that the tier had no time or room for"),
        ("index", "its LMDB file: how full, and who reads it"),
    ),
    View.EVENTS: (
        ("lost", "events overwritten before they were read: they came too fast"),
        ("evicted", "demoted: nothing is lost. live: some conversation misses it"),
        ("missed", "a request computed what it could not restore"),
    ),
}
STATES: Entries = (
    ("LIVE", "numbers are fresh. IDLE: no request is open, so nothing changes"),
    ("STALE", "no newer numbers. GONE: the server died. CLOSED: it ended in order"),
)
FILTER: Entries = (("/ filter", "text, kind:evict seq:e00 group:g7 tier:nvme0; !word: not that"),)


def page(frame: Frame, width: int, room: int) -> list[Text]:
    """As much as there is room for: keys with explanations if they fit, else their names."""
    words = [*OF_VIEW[frame.ui.view], *GENERAL, *FILTER, *STATES]
    explained = [Text(f" WORDS: {frame.ui.view}", HEAD), *_entries(words, WORD_WIDTH, width)]
    keys = _keys(width)
    if len(explained) + len(keys) + 2 > room:
        keys = _names(frame, width)
    source = notices.paragraphs(frame, width, f"Every {frame.interval:g}s from {frame.target}")
    kept = explained[: max(room - len(keys) - 1, 0)]
    page = [*kept, Text(" KEYS", HEAD), *keys]
    return [*page, *source] if len(page) + len(source) <= room else page


def everything(frame: Frame, width: int) -> list[Text]:
    return page(frame, width, 10_000)


def _keys(width: int) -> list[Text]:
    """Every key with what it does, in as many columns as fit."""
    columns = max(width // MIN_COLUMN, 1)
    each = width // columns
    shown = [
        line.plain for key in KEYS for line in _entries(((key.shown, key.help),), KEY_WIDTH, each)
    ]
    height = -(-len(shown) // columns)
    stacks = [shown[i * height : (i + 1) * height] for i in range(columns)]
    return [
        Text("".join(text.fit(stack[i], each) for stack in stacks if i < len(stack)))
        for i in range(height)
    ]


def _names(frame: Frame, width: int) -> list[Text]:
    """Every key by its name alone."""
    lines, line = [], ""
    for key in KEYS:
        entry = f" {key.shown} {key.word} "
        if cell_len(line) + cell_len(entry) > width:
            lines.append(line)
            line = ""
        line += entry
    return [Text(text.clean(line, frame.glyphs)) for line in [*lines, line]]


def _entries(entries: Entries, word_width: int, width: int) -> list[Text]:
    return [line for word, meaning in entries for line in _entry(word, meaning, word_width, width)]


def _entry(word: str, meaning: str, word_width: int, width: int) -> list[Text]:
    lines = notices.wrapped(meaning, width - word_width - 3)
    heads = [word, *[""] * (len(lines) - 1)]
    return [
        Text(f"  {text.fit(head, word_width)}{line}")
        for head, line in zip(heads, lines, strict=True)
    ]
