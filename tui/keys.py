# SPDX-License-Identifier: Apache-2.0
"""Every key of the monitor, once: bindings, key bar and help are made from this table."""

from typing import NamedTuple


class Key(NamedTuple):
    """A key, the action it starts, its word in the key bar and its line in the help."""

    keys: str
    shown: str
    action: str
    word: str
    help: str


KEYS = (
    Key("q", "q", "quit", "quit", "end the monitor (as does Ctrl-C)"),
    Key("p,space", "p", "pause", "pause", "hold the picture, or go on (also: Space)"),
    Key("s", "s", "sort", "sort", "sort groups by name, spare, live, evicted live"),
    Key("question_mark,f1", "?", "help", "help", "show or leave this page (also: F1)"),
)
