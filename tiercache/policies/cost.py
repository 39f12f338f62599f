# SPDX-License-Identifier: Apache-2.0
"""Recompute cost saved: who goes first is what is cheapest to compute again, and ages.

Covers the order of keys whose worth it is told. What a key is worth follows from the checkpoints
around it, which ``demotion`` keeps; until it is told, it is worth nothing.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import NamedTuple

from tiercache.blocks import Key
from tiercache.policies.base import Evicted, Policy

#: A checkpoint that one other continues is resumed from only if that one is lost or edited away.
#: 0 to 0.01 do as well, on coding assistants and on chats; 0.1 costs up to 2.6 points.
SUPERSEDED_REUSE = 0.005


def checkpoint_worth(saved_tokens: int, children: int) -> float:
    """Tokens that a checkpoint is expected to save.

    ``saved_tokens`` lie between it and the nearest one before it; ``children`` continue it.
    """
    reuse = SUPERSEDED_REUSE + children - 1 if children else 1.0
    return reuse * saved_tokens


class _Place(NamedTuple):
    """A place in the order. Places of equal value are taken in turn."""

    value: float
    turn: int
    key: Key


class Cost(Policy):
    """Evicts demoted keys in the order of their demotion, then the live key of least value.

    The value is the worth plus the ``clock`` when the key was last used; the clock is the highest
    value that was evicted (GreedyDual; Young 1994), so what is not used falls behind. A pinned key
    leaves the order. Operations are O(log n) per key: places that no longer hold stay in the heap
    until they come up, or make up more than half of it.
    """

    name = "cost"
    appraises = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.clock = 0.0
        self._worth: dict[Key, float] = {}
        """Of every known key."""
        self._used: dict[Key, float] = {}
        """The clock when a known key was last used."""
        self._demoted: OrderedDict[Key, None] = OrderedDict()
        self._pinned: dict[Key, bool] = {}
        """Pinned keys and whether for a load."""
        self._places: dict[Key, _Place] = {}
        """Of the live, unpinned keys."""
        self._heap: list[_Place] = []
        self._turns = count()

    def insert(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._worth[key] = 0.0
            self._used[key] = self.clock
            self._place(key)

    def _place(self, key: Key) -> None:
        """Give a live key the place that it deserves now, unless it is pinned."""
        if key in self._pinned:
            return
        place = _Place(self._used[key] + self._worth[key], next(self._turns), key)
        self._places[key] = place
        heappush(self._heap, place)
        if len(self._heap) > 2 * len(self._places) + 8:
            self._heap = list(self._places.values())
            heapify(self._heap)

    def appraise(self, key: Key, worth: float) -> None:
        if self._worth.get(key, worth) != worth:
            self._worth[key] = worth
            if key in self._places:
                self._place(key)

    def touch(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key in self._used:
                self._used[key] = self.clock
                self._demoted.pop(key, None)
                self._place(key)

    def demote(self, keys: Sequence[Key], *, first: bool = False) -> list[Key]:
        demoted = self._demoted
        moved = [key for key in dict.fromkeys(keys) if key in self._used and key not in demoted]
        for key in moved:
            self._places.pop(key, None)
            demoted[key] = None
        for key in reversed(keys) if first else ():
            if key in demoted:
                demoted.move_to_end(key, last=False)
        return moved

    def pin(self, keys: Collection[Key], *, hit: bool) -> None:
        for key in keys:
            self._places.pop(key, None)
            self._pinned[key] = hit or self._pinned.get(key, False)
            if hit:
                self._demoted.pop(key, None)

    def unpin(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for_load = self._pinned.pop(key, None)
            if for_load is None or key in self._demoted:
                continue
            if for_load:
                self._used[key] = self.clock
            self._place(key)

    @property
    def pinned(self) -> Collection[Key]:
        return self._pinned.keys()

    def remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for table in (self._worth, self._used, self._demoted, self._pinned, self._places):
                table.pop(key, None)

    def peek(self, n: int, protected: Collection[Key] = ()) -> Evicted:
        passed = self._pinned.keys() | protected if protected else self._pinned
        demoted = list(islice((key for key in self._demoted if key not in passed), n))
        live = self._lowest(n - len(demoted), protected)
        return Evicted(demoted + live, len(demoted))

    def _lowest(self, n: int, protected: Collection[Key]) -> list[Key]:
        places = list(islice(self._in_order(), n + len(protected)))
        for place in places:
            heappush(self._heap, place)
        return [place.key for place in places if place.key not in protected][:n]

    def _in_order(self) -> Iterator[_Place]:
        """Take places out of the heap, the lowest first, dropping those that no longer hold."""
        while self._heap:
            place = heappop(self._heap)
            if self._places.get(place.key) is place:
                yield place

    def evict(self, n: int, protected: Collection[Key] = ()) -> Evicted | None:
        victims = self.peek(n, protected)
        if len(victims.keys) < n:
            return None
        values = (self._used[key] + self._worth[key] for key in victims.keys)
        self.clock = max([self.clock, *values])
        self.remove(victims.keys)
        return victims

    @property
    def demoted(self) -> int:
        return len(self._demoted) - len(self._demoted.keys() & self._pinned.keys())

    def is_demoted(self, key: Key) -> bool:
        return key in self._demoted

    def __len__(self) -> int:
        return len(self._used) - len(self._pinned)

    def __contains__(self, key: Key) -> bool:
        return key in self._used and key not in self._pinned
