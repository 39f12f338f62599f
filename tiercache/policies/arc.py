# SPDX-License-Identifier: Apache-2.0
"""Adaptive replacement cache (Megiddo and Modha, FAST 2003), with pins and without demotion."""

import logging
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Sequence

from tiercache.blocks import Key
from tiercache.policies.base import Policy, SomeSlots, Victims, numbers

logger = logging.getLogger(__name__)

Queue = OrderedDict[int, None]
Ghosts = OrderedDict[Key, None]


class ARC(Policy):
    """Balances slots seen once (``T1``) against slots seen again (``T2``) by their ghosts' hits.

    ``target`` is the size that T1 should have. Differences from the paper: a victim is taken
    when room is needed, not at each miss; slots that are pinned for a load leave their queue, count
    for neither side and come back as its most recent ones, others are passed over; ``demote`` does
    nothing, since the balance would no longer mean what it says.
    """

    name = "arc"
    _said_no_demotion = False

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.target = 0.0
        self._once: Queue = OrderedDict()
        self._again: Queue = OrderedDict()
        self._once_ghosts: Ghosts = OrderedDict()
        self._again_ghosts: Ghosts = OrderedDict()
        self._keys: dict[int, Key] = {}
        """What each slot holds, as a ghost is known again by its key."""
        self._pinned: dict[int, Queue | None] = {}
        """The queue that a pinned slot has left, None if it kept its place."""
        self._in_place = 0
        """Pinned slots that kept their place."""

    def insert(self, slots: SomeSlots, keys: Sequence[Key]) -> None:
        for slot, key in zip(numbers(slots), keys, strict=True):
            self._adapt(key)[slot] = None
            self._keys[slot] = key

    def _adapt(self, key: Key) -> Queue:
        """Move ``target`` towards the side whose ghost came back; return the key's queue."""
        once, again = len(self._once_ghosts), len(self._again_ghosts)
        if key in self._once_ghosts:
            self.target = min(self.capacity, self.target + max(1.0, again / once))
            del self._once_ghosts[key]
            return self._again
        if key in self._again_ghosts:
            self.target = max(0.0, self.target - max(1.0, once / again))
            del self._again_ghosts[key]
            return self._again
        return self._once

    def touch(self, slots: SomeSlots) -> None:
        for slot in numbers(slots):
            if slot in self._once:
                del self._once[slot]
                self._again[slot] = None
            elif slot in self._again:
                self._again.move_to_end(slot)
            elif slot in self._pinned:
                self._pinned[slot] = self._again

    def settle(self, slots: SomeSlots, reused: Iterable[bool], *, tail_first: bool) -> None:
        """As in the base; what the request inserted itself stays seen once."""
        used = list(zip(numbers(slots), reused, strict=True))
        for slot, was_there in reversed(used) if tail_first else used:
            if was_there or slot in self._again:
                self.touch((slot,))
            elif slot in self._once:
                self._once.move_to_end(slot)

    def demote(self, slots: SomeSlots, *, first: bool = False) -> list[int]:
        if not ARC._said_no_demotion:
            ARC._said_no_demotion = True
            logger.info("the arc policy does not demote superseded states; lru does")
        return []

    def pin(self, slots: SomeSlots, *, hit: bool) -> None:
        for slot in numbers(slots):
            if hit:
                self.touch((slot,))
                self._take_out(slot)
            elif slot not in self._pinned and (slot in self._once or slot in self._again):
                self._pinned[slot] = None
                self._in_place += 1

    def _take_out(self, slot: int) -> None:
        for queue in (self._once, self._again):
            if slot in queue:
                del queue[slot]
                self._in_place -= slot in self._pinned
                self._pinned[slot] = queue

    def unpin(self, slots: SomeSlots) -> None:
        for slot in filter(self._pinned.__contains__, numbers(slots)):
            queue = self._pinned.pop(slot)
            if queue is None:
                self._in_place -= 1
            else:
                queue[slot] = None

    def remove(self, slots: SomeSlots) -> None:
        for slot in numbers(slots):
            self.unpin((slot,))
            for queue in (self._once, self._again):
                queue.pop(slot, None)
            self._keys.pop(slot, None)

    def peek(self, n: int, protected: Container[int] = ()) -> Victims:
        return Victims([slot for slot, _ in self._select(n, protected)], 0)

    def evict(self, n: int, protected: Container[int] = ()) -> Victims | None:
        victims = list(self._select(n, protected))
        if len(victims) < n:
            return None
        for slot, queue in victims:
            del queue[slot]
            ghosts = self._once_ghosts if queue is self._once else self._again_ghosts
            ghosts[self._keys.pop(slot)] = None
        for ghosts in (self._once_ghosts, self._again_ghosts):
            while len(ghosts) > self.capacity:
                ghosts.popitem(last=False)
        return Victims([slot for slot, _ in victims], 0)

    def _select(self, n: int, protected: Container[int]) -> Iterator[tuple[int, Queue]]:
        pinned = self._pinned
        once = (slot for slot in self._once if slot not in protected and slot not in pinned)
        again = (slot for slot in self._again if slot not in protected and slot not in pinned)
        left = len(self._once)
        for _ in range(n):
            first, second = (once, again) if left > self.target else (again, once)
            slot = next(first, None)
            if slot is None:
                slot = next(second, None)
            if slot is None:
                return
            queue = self._once if slot in self._once else self._again
            left -= queue is self._once
            yield slot, queue

    @property
    def has_demoted(self) -> bool:
        return False

    @property
    def demoted(self) -> int:
        return 0

    def demoted_of(self, slots: SomeSlots) -> list[int]:
        return []

    def __len__(self) -> int:
        return len(self._once) + len(self._again) - self._in_place

    def __contains__(self, slot: int) -> bool:
        return (slot in self._once or slot in self._again) and slot not in self._pinned
