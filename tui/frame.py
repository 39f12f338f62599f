# SPDX-License-Identifier: Apache-2.0
"""Everything that one picture is made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tiercache.stats.model import Event, Snapshot
from tiercache.tui.feed import State, Status
from tiercache.tui.state import UiState
from tiercache.tui.text import UNICODE, Glyphs


@dataclass(frozen=True, slots=True)
class Frame:
    """What to draw. ``history`` has the newest snapshot last, ``log`` the newest event."""

    target: str
    """What is looked at: a file, an address, or ``demo``."""
    interval: float
    now: float
    status: Status
    history: Sequence[Snapshot] = ()
    log: Sequence[Event] = ()
    events_lost: int = 0
    ui: UiState = field(default_factory=UiState)
    baseline: Snapshot | None = None
    """Totals are counted from here on; None: from the start of the server."""
    glyphs: Glyphs = UNICODE

    @property
    def latest(self) -> Snapshot | None:
        return self.history[-1] if self.history else None

    @property
    def is_live(self) -> bool:
        return self.status.state in (State.LIVE, State.IDLE, State.REPLAY)
