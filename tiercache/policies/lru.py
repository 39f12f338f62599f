# SPDX-License-Identifier: Apache-2.0
"""Least recently used, with demotion: two queues, the demoted one is emptied first."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from itertools import filterfalse, islice

from tiercache.blocks import Key
from tiercache.policies.base import Evicted, Policy


class LRU(Policy):
    """Evicts demoted keys in the order of their demotion, then live ones by recency.

    All operations are O(1) per key. A pinned key stays in its queue: most are unpinned before
    eviction gets there, and eviction moves those that it meets to the end, where they go anyway.
    """

    name = "lru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._live: OrderedDict[Key, None] = OrderedDict()
        self._demoted: OrderedDict[Key, None] = OrderedDict()
        self._pinned: dict[Key, bool] = {}
        """Pinned keys, in the order of their pins, and whether for a load."""

    def insert(self, keys: Iterable[Key]) -> None:
        live = self._live
        for key in keys:
            live[key] = None

    def touch(self, keys: Iterable[Key]) -> None:
        move_to_end = self._live.move_to_end
        for key in keys:
            try:
                move_to_end(key)
            except KeyError:
                self._revive(key)

    def _revive(self, key: Key) -> None:
        if key in self._demoted:
            del self._demoted[key]
            self._live[key] = None

    def demote(self, keys: Sequence[Key], *, first: bool = False) -> list[Key]:
        live, demoted = self._live, self._demoted
        moved = []
        for key in keys:
            if key in live:
                del live[key]
                demoted[key] = None
                moved.append(key)
        for key in reversed(keys) if first else ():
            if key in demoted:
                demoted.move_to_end(key, last=False)
        return moved

    def pin(self, keys: Collection[Key], *, hit: bool) -> None:
        if not hit:
            for key in keys:
                self._pinned.setdefault(key, False)
            return
        self._pinned.update(dict.fromkeys(keys, True))
        if self._demoted:
            self.touch(filter(self._demoted.__contains__, keys))

    def unpin(self, keys: Iterable[Key]) -> None:
        pop, move_to_end = self._pinned.pop, self._live.move_to_end
        hits = [key for key in keys if pop(key, False)]
        for key in filterfalse(self._demoted.__contains__, hits) if self._demoted else hits:
            move_to_end(key)

    @property
    def pinned(self) -> Collection[Key]:
        return self._pinned.keys()

    def remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for table in (self._live, self._demoted, self._pinned):
                table.pop(key, None)

    def peek(self, n: int, protected: Collection[Key] = ()) -> Evicted:
        demoted = self._first(self._demoted, n, protected)
        live = self._first(self._live, n - len(demoted), protected)
        return Evicted(demoted + live, len(demoted))

    def _first(
        self, queue: OrderedDict[Key, None], n: int, protected: Collection[Key]
    ) -> list[Key]:
        if not self._pinned:
            return list(islice(_without(queue, protected), n))
        found: list[Key] = []
        passed: list[Key] = []
        for key in queue if n else ():
            for_load = self._pinned.get(key)
            if for_load:
                passed.append(key)
            elif for_load is None and key not in protected:
                found.append(key)
                if len(found) == n:
                    break
        if queue is self._live:
            for key in passed:
                queue.move_to_end(key)
        return found

    def evict(self, n: int, protected: Collection[Key] = ()) -> Evicted | None:
        victims = self.peek(n, protected)
        if len(victims.keys) < n:
            return None
        for key in islice(victims.keys, victims.demoted):
            del self._demoted[key]
        for key in islice(victims.keys, victims.demoted, None):
            del self._live[key]
        return victims

    @property
    def demoted(self) -> int:
        return len(self._demoted) - len(self._demoted.keys() & self._pinned.keys())

    def is_demoted(self, key: Key) -> bool:
        return key in self._demoted

    def __len__(self) -> int:
        return len(self._live) + len(self._demoted) - len(self._pinned)

    def __contains__(self, key: Key) -> bool:
        return (key in self._live or key in self._demoted) and key not in self._pinned


def _without(keys: Iterable[Key], protected: Collection[Key]) -> Iterable[Key]:
    return filterfalse(protected.__contains__, keys) if protected else keys
