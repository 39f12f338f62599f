# SPDX-License-Identifier: Apache-2.0
"""Adaptive replacement cache (Megiddo and Modha, FAST 2003), with pins and without demotion."""

import logging
from collections.abc import Container, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tiercache.blocks import Key
from tiercache.ghosts import NAME, Ghosts, Names, short_names
from tiercache.policies.base import Policy, SomeSlots, Victims
from tiercache.slotqueue import Mask, SlotQueue, Slots

logger = logging.getLogger(__name__)

_FREE: Final = 0
_HELD: Final = 1
_OUT: Final = 2


class ARC(Policy):
    """Balances slots seen once (``T1``) against slots seen again (``T2``) by their ghosts' hits.

    ``target`` is the size that T1 should have. Differences from the paper: a victim is taken
    when room is needed, not at each miss; slots that are pinned for a load leave their queue, count
    for neither side and come back as its most recent ones, others are passed over; ghosts are
    known again by the first bytes of their keys; ``demote`` does nothing, since the balance would
    no longer mean what it says. All operations are O(1) per slot given or passed over.
    """

    name = "arc"
    _said_no_demotion = False

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.target = 0.0
        self._once, self._again = SlotQueue(capacity), SlotQueue(capacity)
        self._once_ghosts, self._again_ghosts = Ghosts(capacity), Ghosts(capacity)
        self._names: Names = np.zeros(capacity, NAME)
        """Of the key in each slot. If two keys share one, a key seen once counts as seen again."""
        self._pins = np.zeros(capacity, np.int8)
        """Of each slot: not pinned, held for a copy in its place, or out of T2 for a load."""
        self._held = 0

    def insert(self, slots: SomeSlots, keys: Sequence[Key]) -> None:
        new, names = np.asarray(slots, np.int64), short_names(keys)
        back = self._recall(names)
        self._again.put_last(new[back])
        self._once.put_last(new[~back])
        self._names[new] = names

    def _recall(self, names: Names) -> Mask:
        """Which of ``names`` are ghosts; they are no longer, and have moved ``target``."""
        once, again = self._once_ghosts.recall(names), self._again_ghosts.recall(names)
        back: Mask = once | again
        if back.any():
            self._adapt(once[back].tolist())
        return back

    def _adapt(self, was_once: list[bool]) -> None:
        """Move ``target`` towards the side of each ghost that came back, in order.

        What came back are ghosts no longer, but each counts until it is looked at.
        """
        # Counted by what came back, not by names, which keys may share: neither divisor is 0.
        once = len(self._once_ghosts) + was_once.count(True)
        again = len(self._again_ghosts) + was_once.count(False)
        for is_once in was_once:
            if is_once:
                self.target = min(self.capacity, self.target + max(1.0, again / once))
                once -= 1
            else:
                self.target = max(0.0, self.target - max(1.0, once / again))
                again -= 1

    def touch(self, slots: SomeSlots) -> None:
        queued = self._queued(np.asarray(slots, np.int64))
        self._once.remove(queued)
        self._again.put_last(queued)

    def _queued(self, slots: Slots) -> Slots:
        """Those of ``slots`` that are in a queue."""
        return slots[self._once.holds(slots) | self._again.holds(slots)]

    def settle(self, slots: SomeSlots, reused: Iterable[bool], *, tail_first: bool) -> None:
        """As in the base; what the request inserted itself stays seen once."""
        used = np.asarray(slots, np.int64)
        again = np.fromiter(reused, np.bool_) | self._again.holds(used)
        if tail_first:
            used, again = used[::-1], again[::-1]
        self.touch(used[again])
        inserted = used[~again]
        self._once.put_last(inserted[self._once.holds(inserted)])

    def demote(self, slots: SomeSlots, *, first: bool = False) -> list[int]:
        if not ARC._said_no_demotion:
            ARC._said_no_demotion = True
            logger.info("the arc policy does not demote superseded states; lru does")
        return []

    def pin(self, slots: SomeSlots, *, hit: bool) -> None:
        queued = self._queued(np.asarray(slots, np.int64))
        pins = self._pins[queued]
        if hit:
            self._held -= int(np.count_nonzero(pins))
            self._pins[queued] = _OUT
            self._once.remove(queued)
            self._again.remove(queued)
        else:
            self._held += int(np.count_nonzero(pins == _FREE))
            self._pins[queued] = _HELD

    def unpin(self, slots: SomeSlots) -> None:
        known = np.asarray(slots, np.int64)
        pins = self._pins[known]
        self._pins[known] = _FREE
        self._held -= int(np.count_nonzero(pins == _HELD))
        self._again.put_last(known[pins == _OUT])

    def remove(self, slots: SomeSlots) -> None:
        known = np.asarray(slots, np.int64)
        self._held -= int(np.count_nonzero(self._pins[known] == _HELD))
        self._pins[known] = _FREE
        self._once.remove(known)
        self._again.remove(known)

    def peek(self, n: int, protected: Container[int] = ()) -> Victims:
        return Victims(self._select(n, protected).slots, 0)

    def evict(self, n: int, protected: Container[int] = ()) -> Victims | None:
        chosen = self._select(n, protected)
        if len(chosen.slots) < n:
            return None
        if chosen.once:
            self._bury(chosen.once, self._once, self._once_ghosts)
        if chosen.again:
            self._bury(chosen.again, self._again, self._again_ghosts)
        return Victims(chosen.slots, 0)

    def _bury(self, slots: list[int], queue: SlotQueue, ghosts: Ghosts) -> None:
        """Take slots out of their queue; what they held are its youngest ghosts."""
        gone = np.array(slots, np.int64)
        queue.remove(gone)
        ghosts.remember(self._names[gone])

    def _select(self, n: int, protected: Container[int]) -> "_Chosen":
        """The next ``n`` victims, or fewer.

        T1 gives until it has its target or no more to take, then T2 until it has no more, and T1
        the rest: T1 only shrinks meanwhile, so that no later one is decided the other way.
        """
        above = len(self._once) - int(self.target)
        once = self._first(self._once, max(0, min(n, above)), protected)
        again = self._first(self._again, n - len(once), protected)
        before = len(once)
        if before + len(again) < n:
            once = self._first(self._once, n - len(again), protected)
        return _Chosen(once, again, before)

    def _first(self, queue: SlotQueue, n: int, protected: Container[int]) -> list[int]:
        return queue.first(n, protected, self._pins if self._held else None)

    @property
    def has_demoted(self) -> bool:
        return False

    @property
    def demoted(self) -> int:
        return 0

    def demoted_of(self, slots: SomeSlots) -> list[int]:
        return []

    def __len__(self) -> int:
        return len(self._once) + len(self._again) - self._held

    def __contains__(self, slot: int) -> bool:
        return len(self._queued(np.array([slot]))) == 1 and self._pins[slot] == _FREE


class _Chosen(NamedTuple):
    """Victims of each queue in its order; the first ``before`` of T1 go before those of T2."""

    once: list[int]
    again: list[int]
    before: int

    @property
    def slots(self) -> list[int]:
        return self.once[: self.before] + self.again + self.once[self.before :]
