# SPDX-License-Identifier: Apache-2.0
"""How many conversations a cache of given slots can bring back, worked out rather than played.

Covers one pattern: a conversation is idle while all others, as long as it is, take so many turns.
What real requests do to a cache is for ``replay``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tiercache.blocks import GroupKind, GroupSpec
from tiercache.layout import Geometry

#: States that a turn leaves: one to send it again from, one to continue it from.
TURN_STATES: Final = 2
#: States of a conversation that demotion leaves alone: those in the last blocks before its newest.
KEPT_STATES: Final = 3


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many conversations of ``tokens`` tokens there can be."""

    tokens: int
    attention: int | None
    """As many as have all their attention blocks; None where nothing has any."""
    demoting: int
    """As many as can be restored where superseded states are demoted."""
    plain: int
    """As many as can be restored where they are not."""


def capacity(geometry: Geometry, tokens: int, turns: int) -> Capacity:
    """What ``geometry`` holds of conversations of ``tokens`` that take ``turns`` while one is idle.

    The newest state of the idle one survives while fewer states than there are slots come after
    it. Without demotion those are all that the others' turns leave, with it the few that each of
    the others keeps, and the next turn's in the making.
    """
    attention = min(
        (
            geometry.slots[group.group_id] // -(-tokens // group.tokens_per_chunk)
            for group in _of(geometry, state=False)
        ),
        default=None,
    )
    states = list(_of(geometry, state=True))
    if not states:
        return Capacity(tokens, attention, attention or 0, attention or 0)
    slots = min(geometry.slots[group.group_id] for group in states)
    left = _left(geometry, states[0].tokens_per_chunk, tokens, turns)
    demoting = _fitting(slots, min(KEPT_STATES, left), TURN_STATES)
    plain = min(_fitting(slots, left, 0), demoting)
    if attention is None:
        return Capacity(tokens, None, demoting, plain)
    return Capacity(tokens, attention, min(attention, demoting), min(attention, plain))


def _left(geometry: Geometry, step: int, tokens: int, turns: int) -> int:
    """States that a conversation leaves at boundaries ``step`` tokens apart, old ones included."""
    boundaries = max(tokens // step, 1)
    if geometry.retention is None:
        return boundaries
    periodic = tokens // geometry.retention if geometry.retention else 0
    return min(boundaries, periodic + TURN_STATES * turns)


def _fitting(slots: int, each: int, beside: int) -> int:
    """How many conversations there can be, if all but one have ``each`` states, and one its newest.

    ``beside`` is room for others.
    """
    return 1 + max(slots - 1 - beside, 0) // each


def _of(geometry: Geometry, *, state: bool) -> Iterable[GroupSpec]:
    return (group for group in geometry.groups if (group.kind is GroupKind.STATE) is state)
