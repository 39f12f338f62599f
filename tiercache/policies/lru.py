# SPDX-License-Identifier: Apache-2.0
"""Least recently used, with demotion: two queues, the demoted one is emptied first."""

from collections.abc import Container, Sequence
from typing import Final

import numpy as np

from tiercache.blocks import Key
from tiercache.policies.base import Policy, SomeSlots, Victims, numbers
from tiercache.slotqueue import SlotQueue

_FREE: Final = 0
_HELD: Final = 1
_HIT: Final = 2


class LRU(Policy):
    """Evicts demoted slots in the order of their demotion, then live ones by recency.

    All operations are O(1) per slot. A pinned slot stays in its queue, where eviction passes it
    over: most are unpinned before it gets there.
    """

    name = "lru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._live, self._demoted = SlotQueue(capacity), SlotQueue(capacity)
        self._pins = np.zeros(capacity, np.int8)
        """Of each slot: not pinned, held for a copy, or pinned for a load."""
        self._pinned = 0

    def insert(self, slots: SomeSlots, keys: Sequence[Key]) -> None:
        self._live.put_last(np.asarray(slots, np.int64))

    def touch(self, slots: SomeSlots) -> None:
        known = np.asarray(slots, np.int64)
        if len(self._demoted):
            demoted = self._demoted.holds(known)
            self._live.put_last(known[demoted | self._live.holds(known)])
            self._demoted.remove(known[demoted])
        else:
            self._live.put_last(known[self._live.holds(known)])

    def demote(self, slots: SomeSlots, *, first: bool = False) -> Sequence[int]:
        known = np.asarray(slots, np.int64)
        moved = known[self._live.holds(known)]
        self._live.remove(moved)
        self._demoted.put_last(moved)
        if first:
            self._demoted.put_first(known[self._demoted.holds(known)])
        return numbers(moved)

    def pin(self, slots: SomeSlots, *, hit: bool) -> None:
        known = np.asarray(slots, np.int64)
        self._pinned += int(np.count_nonzero(self._pins[known] == _FREE))
        self._pins[known] = np.maximum(self._pins[known], _HIT if hit else _HELD)
        if hit and len(self._demoted):
            self.touch(known[self._demoted.holds(known)])

    def unpin(self, slots: SomeSlots) -> None:
        known = np.asarray(slots, np.int64)
        pins = self._pins[known]
        self._pins[known] = _FREE
        self._pinned -= int(np.count_nonzero(pins))
        hits = known[pins == _HIT]
        self._live.put_last(hits[self._live.holds(hits)])

    def remove(self, slots: SomeSlots) -> None:
        known = np.asarray(slots, np.int64)
        self._live.remove(known)
        self._demoted.remove(known)
        self._pinned -= int(np.count_nonzero(self._pins[known]))
        self._pins[known] = _FREE

    def peek(self, n: int, protected: Container[int] = ()) -> Victims:
        demoted = self._first(self._demoted, n, protected)
        live = self._first(self._live, n - len(demoted), protected)
        return Victims(demoted + live, len(demoted))

    def _first(self, queue: SlotQueue, n: int, protected: Container[int]) -> list[int]:
        return queue.first(n, protected, self._pins if self._pinned else None)

    def evict(self, n: int, protected: Container[int] = ()) -> Victims | None:
        victims = self.peek(n, protected)
        if len(victims.slots) < n:
            return None
        slots = np.array(victims.slots, np.int64)
        self._demoted.remove(slots[: victims.demoted])
        self._live.remove(slots[victims.demoted :])
        return victims

    @property
    def has_demoted(self) -> bool:
        return len(self._demoted) > 0

    @property
    def demoted(self) -> int:
        return sum(int(np.count_nonzero(self._pins[slots] == _FREE)) for slots in self._demoted)

    def demoted_of(self, slots: SomeSlots) -> Sequence[int]:
        if not len(self._demoted):
            return []
        known = np.asarray(slots, np.int64)
        return numbers(known[self._demoted.holds(known)])

    def __len__(self) -> int:
        return len(self._live) + len(self._demoted) - self._pinned

    def __contains__(self, slot: int) -> bool:
        one = np.array([slot])
        queued = self._live.holds(one) | self._demoted.holds(one)
        return bool(queued) and self._pins[slot] == _FREE
