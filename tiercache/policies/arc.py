# SPDX-License-Identifier: Apache-2.0
"""Adaptive replacement cache (Megiddo and Modha, FAST 2003), with pins and without demotion."""

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence

from tiercache.blocks import Key
from tiercache.policies.base import Evicted, Policy

logger = logging.getLogger(__name__)

Queue = OrderedDict[Key, None]


class ARC(Policy):
    """Balances keys seen once (``T1``) against keys seen again (``T2``) by their ghosts' hits.

    ``target`` is the size that T1 should have. Differences from the paper: a victim is taken
    when room is needed, not at each miss; keys that are pinned for a load leave their queue, count
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
        self._once_ghosts: Queue = OrderedDict()
        self._again_ghosts: Queue = OrderedDict()
        self._pinned: dict[Key, Queue | None] = {}
        """The queue that a pinned key has left, None if it kept its place."""
        self._in_place = 0
        """Pinned keys that kept their place."""

    def insert(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._adapt(key)[key] = None

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

    def touch(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key in self._once:
                del self._once[key]
                self._again[key] = None
            elif key in self._again:
                self._again.move_to_end(key)
            elif key in self._pinned:
                self._pinned[key] = self._again

    def settle(self, used: dict[Key, bool], *, tail_first: bool) -> None:
        """As in the base; what the request inserted itself stays seen once."""
        for key in reversed(used) if tail_first else used:
            if used[key] or key in self._again:
                self.touch((key,))
            elif key in self._once:
                self._once.move_to_end(key)

    def demote(self, keys: Sequence[Key], *, first: bool = False) -> list[Key]:
        if not ARC._said_no_demotion:
            ARC._said_no_demotion = True
            logger.info("the arc policy does not demote superseded states; lru does")
        return []

    def pin(self, keys: Collection[Key], *, hit: bool) -> None:
        for key in keys:
            if hit:
                self.touch((key,))
                self._take_out(key)
            elif key not in self._pinned and (key in self._once or key in self._again):
                self._pinned[key] = None
                self._in_place += 1

    def _take_out(self, key: Key) -> None:
        for queue in (self._once, self._again):
            if key in queue:
                del queue[key]
                self._in_place -= key in self._pinned
                self._pinned[key] = queue

    def unpin(self, keys: Iterable[Key]) -> None:
        for key in filter(self._pinned.__contains__, keys):
            queue = self._pinned.pop(key)
            if queue is None:
                self._in_place -= 1
            else:
                queue[key] = None

    @property
    def pinned(self) -> Collection[Key]:
        return self._pinned.keys()

    def remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.unpin((key,))
            for queue in (self._once, self._again):
                queue.pop(key, None)

    def peek(self, n: int, protected: Collection[Key] = ()) -> Evicted:
        return Evicted([key for key, _ in self._select(n, protected)], 0)

    def evict(self, n: int, protected: Collection[Key] = ()) -> Evicted | None:
        victims = list(self._select(n, protected))
        if len(victims) < n:
            return None
        for key, queue in victims:
            del queue[key]
            ghosts = self._once_ghosts if queue is self._once else self._again_ghosts
            ghosts[key] = None
        for ghosts in (self._once_ghosts, self._again_ghosts):
            while len(ghosts) > self.capacity:
                ghosts.popitem(last=False)
        return Evicted([key for key, _ in victims], 0)

    def _select(self, n: int, protected: Collection[Key]) -> Iterator[tuple[Key, Queue]]:
        pinned = self._pinned
        once = (key for key in self._once if key not in protected and key not in pinned)
        again = (key for key in self._again if key not in protected and key not in pinned)
        left = len(self._once)
        for _ in range(n):
            first, second = (once, again) if left > self.target else (again, once)
            key = next(first, None) or next(second, None)
            if key is None:
                return
            queue = self._once if key in self._once else self._again
            left -= queue is self._once
            yield key, queue

    @property
    def demoted(self) -> int:
        return 0

    def is_demoted(self, key: Key) -> bool:
        return False

    def __len__(self) -> int:
        return len(self._once) + len(self._again) - self._in_place

    def __contains__(self, key: Key) -> bool:
        return (key in self._once or key in self._again) and key not in self._pinned
