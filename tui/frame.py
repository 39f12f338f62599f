# SPDX-License-Identifier: Apache-2.0
"""Everything that one picture is made of, and the order of its rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tiercache.tui.feed import State, Status
from tiercache.tui.snapshot import Group, Snapshot
from tiercache.tui.text import UNICODE, Glyphs


class Sort(StrEnum):
    """What the groups are sorted by, the ones in need first."""

    GROUP = "group"
    SPARE = "spare"
    LIVE = "live"
    EVICTED_LIVE = "evicted live"

    @property
    def following(self) -> "Sort":
        orders = list(Sort)
        return orders[(orders.index(self) + 1) % len(orders)]

    def apply(self, groups: Sequence[Group]) -> list[Group]:
        """``groups`` in this order; those that are equal in it keep theirs."""
        return sorted(groups, key=self._rank)

    def _rank(self, group: Group) -> int:
        match self:
            case Sort.GROUP:
                return 0
            case Sort.SPARE:
                return group.spare
            case Sort.LIVE:
                return -group.slots.live
            case Sort.EVICTED_LIVE:
                return -(group.counters.evicted_live or 0)


@dataclass(frozen=True, slots=True)
class Frame:
    """What to draw. ``history`` has the newest snapshot last; ``paused_since`` is None if live."""

    url: str
    interval: float
    now: float
    status: Status
    history: Sequence[Snapshot] = ()
    sort: Sort = Sort.GROUP
    paused_since: float | None = None
    glyphs: Glyphs = UNICODE

    @property
    def latest(self) -> Snapshot | None:
        return self.history[-1] if self.history else None

    @property
    def is_live(self) -> bool:
        return self.status.state is State.LIVE
