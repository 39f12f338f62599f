# SPDX-License-Identifier: Apache-2.0
"""What the reader of the screen has chosen: the view, its filter, order and cursor."""

from dataclasses import dataclass
from enum import StrEnum


class View(StrEnum):
    """The screens, in the order of their keys."""

    OVERVIEW = "overview"
    SEQUENCES = "sequences"
    EVICTION = "eviction"
    TIERS = "tiers"
    EVENTS = "events"


@dataclass(frozen=True, slots=True)
class UiState:
    """One value for everything that keys change."""

    view: View = View.OVERVIEW
    group: str | None = None
    """The group whose eviction order is shown; None: the one with the least spare slots."""
    cursor: int = 0
    """A row of the view's list, from 0."""
    detail: bool = False
    """Whether the row under the cursor is shown at length."""
    filter: str = ""
    filtering: bool = False
    """Whether the filter is being typed."""
    sort: str = ""
    """Title of the column that the list is sorted by; empty: the view's own order."""
    inverted: bool = False
    zoomed: bool = False
    follow: bool = True
    """Whether the events view keeps to the newest."""
    tokens: bool = False
    """Whether sizes are shown in tokens where both are known, not in bytes."""
    helping: bool = False
    paused_since: float | None = None
    message: str = ""
    """What the last key did, until the next one."""
