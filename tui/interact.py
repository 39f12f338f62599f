# SPDX-License-Identifier: Apache-2.0
"""What a key does to the choices of the reader, and what else is to be done because of it.

Covers the decision: a pure function of the choices, the key and what is on the screen. The
effects (files, clipboard, the clock) are the work of ``monitor``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from tiercache.tui.keys import ACTIONS, Action
from tiercache.tui.state import UiState, View

#: No filter of any use is longer.
MAX_FILTER = 200


class Effect(StrEnum):
    """What is to be done beside showing the new choices."""

    NONE = "none"
    QUIT = "quit"
    SLOWER = "slower"
    FASTER = "faster"
    SAVE = "save"
    COPY = "copy"
    RESET = "reset"
    THEME = "theme"


@dataclass(frozen=True, slots=True)
class Around:
    """What is on the screen when a key is pressed."""

    now: float
    rows: int = 0
    """Of the list."""
    page: int = 1
    """Rows that a page moves by."""
    groups: Sequence[str] = ()
    group: str | None = None
    """The group that is shown."""
    columns: Sequence[str] = ()
    """Titles that the list can be sorted by."""
    can_pause: bool = True
    """Whether there is a picture to hold."""


class Outcome(NamedTuple):
    """The new choices, and what else is to be done."""

    ui: UiState
    effect: Effect = Effect.NONE


Change = Callable[[UiState, Around], UiState]


def press(ui: UiState, key: str, character: str | None, around: Around) -> Outcome:
    """What the toolkit's ``key`` does; ``character`` is what it would write."""
    ui = replace(ui, message="")
    if ui.filtering and key != "ctrl+c":
        return Outcome(_typed(ui, key, character))
    action = ACTIONS.get(key)
    if action is None:
        return Outcome(ui)
    if action in EFFECTS:
        return Outcome(ui, EFFECTS[action])
    return Outcome(CHANGES[action](ui, around))


def show(ui: UiState, view: View) -> UiState:
    """Another view, from its top and in its own order; the filter stays."""
    return replace(
        ui, view=view, cursor=0, detail=False, sort="", inverted=False, helping=False, follow=True
    )


def _typed(ui: UiState, key: str, character: str | None) -> UiState:
    match key:
        case "enter":
            return replace(ui, filtering=False)
        case "escape":
            return replace(ui, filtering=False, filter="", cursor=0)
        case "backspace":
            return replace(ui, filter=ui.filter[:-1], cursor=0)
        case "ctrl+u":
            return replace(ui, filter="", cursor=0)
    if character is None or not character.isprintable() or len(ui.filter) >= MAX_FILTER:
        return ui
    return replace(ui, filter=ui.filter + character, cursor=0)


def _next_view(step: int) -> Change:
    views = list(View)

    def change(ui: UiState, _: Around) -> UiState:
        return show(ui, views[(views.index(ui.view) + step) % len(views)])

    return change


def _move(where: Callable[[int, Around], int]) -> Change:
    """Move the cursor. A log that is followed has it at its end; moving away stops following."""

    def change(ui: UiState, around: Around) -> UiState:
        last = max(around.rows - 1, 0)
        follows = ui.view is View.EVENTS and ui.follow
        cursor = min(max(where(last if follows else min(ui.cursor, last), around), 0), last)
        return replace(ui, cursor=cursor, follow=ui.follow and (not follows or cursor == last))

    return change


def _bottom(ui: UiState, around: Around) -> UiState:
    return replace(ui, cursor=max(around.rows - 1, 0), follow=True)


def _sort(step: int) -> Change:
    """By the next column; past the last one, in the order of the view itself."""

    def change(ui: UiState, around: Around) -> UiState:
        orders = ["", *around.columns]
        at = orders.index(ui.sort) if ui.sort in orders else 0
        return replace(ui, sort=orders[(at + step) % len(orders)], cursor=0)

    return change


def _group(step: int) -> Change:
    def change(ui: UiState, around: Around) -> UiState:
        if not around.groups:
            return ui
        known = around.group in around.groups
        at = around.groups.index(around.group) if known and around.group is not None else -step
        return replace(ui, group=around.groups[(at + step) % len(around.groups)], cursor=0)

    return change


def _detail(ui: UiState, around: Around) -> UiState:
    return replace(ui, detail=not ui.detail and around.rows > 0)


def _back(ui: UiState, _: Around) -> UiState:
    """One step out: of the help, the detail, the zoom, the filter."""
    if ui.helping:
        return replace(ui, helping=False)
    if ui.detail:
        return replace(ui, detail=False)
    if ui.zoomed:
        return replace(ui, zoomed=False)
    return replace(ui, filter="", cursor=0) if ui.filter else ui


def _pause(ui: UiState, around: Around) -> UiState:
    if ui.paused_since is not None:
        return replace(ui, paused_since=None)
    return replace(ui, paused_since=around.now) if around.can_pause else ui


def _follow(ui: UiState, around: Around) -> UiState:
    """Stay where the newest event is now, or go on with it."""
    return replace(ui, follow=not ui.follow, cursor=max(around.rows - 1, 0))


EFFECTS: Mapping[Action, Effect] = {
    Action.QUIT: Effect.QUIT,
    Action.SLOWER: Effect.SLOWER,
    Action.FASTER: Effect.FASTER,
    Action.SAVE: Effect.SAVE,
    Action.COPY: Effect.COPY,
    Action.RESET: Effect.RESET,
    Action.THEME: Effect.THEME,
}


def _view(view: View) -> Change:
    return lambda ui, _: show(ui, view)


CHANGES: Mapping[Action, Change] = {
    **{Action(view.value): _view(view) for view in View},
    Action.NEXT_VIEW: _next_view(1),
    Action.LAST_VIEW: _next_view(-1),
    Action.HELP: lambda ui, _: replace(ui, helping=not ui.helping),
    Action.PAUSE: _pause,
    Action.BACK: _back,
    Action.FILTER: lambda ui, _: replace(ui, filtering=True, helping=False),
    Action.SORT_LEFT: _sort(-1),
    Action.SORT_RIGHT: _sort(1),
    Action.INVERT: lambda ui, _: replace(ui, inverted=not ui.inverted, cursor=0),
    Action.UP: _move(lambda cursor, _: cursor - 1),
    Action.DOWN: _move(lambda cursor, _: cursor + 1),
    Action.PAGE_UP: _move(lambda cursor, around: cursor - around.page),
    Action.PAGE_DOWN: _move(lambda cursor, around: cursor + around.page),
    Action.TOP: _move(lambda _, __: 0),
    Action.BOTTOM: _bottom,
    Action.DETAIL: _detail,
    Action.LAST_GROUP: _group(-1),
    Action.NEXT_GROUP: _group(1),
    Action.ZOOM: lambda ui, _: replace(ui, zoomed=not ui.zoomed),
    Action.FOLLOW: _follow,
    Action.UNITS: lambda ui, _: replace(ui, tokens=not ui.tokens),
}
