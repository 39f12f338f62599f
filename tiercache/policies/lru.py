# SPDX-License-Identifier: Apache-2.0
"""Least recently used, with demotion: two queues, the demoted one is emptied first."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from tiercache.blocks import Key
from tiercache.policies.base import Evicted, Policy

_UNKNOWN = object()


class LRU(Policy):
    """Evicts demoted keys in the order of their demotion, then live ones by recency.

    All operations are O(1) per key. Pinned keys leave the queues, so eviction never scans them.
    """

    name = "lru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._live: OrderedDict[Key, None] = OrderedDict()
        self._demoted: OrderedDict[Key, None] = OrderedDict()
        self._pinned: dict[Key, bool] = {}

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
        elif key in self._pinned:
            self._pinned[key] = False

    def demote(self, keys: Sequence[Key], *, first: bool = False) -> list[Key]:
        live, demoted, pinned = self._live, self._demoted, self._pinned
        moved = []
        for key in keys:
            if key in live:
                del live[key]
                demoted[key] = None
                moved.append(key)
            elif pinned.get(key) is False:
                pinned[key] = True
                moved.append(key)
        for key in reversed(keys) if first else ():
            if key in demoted:
                demoted.move_to_end(key, last=False)
        return moved

    def pin(self, keys: Iterable[Key], *, hit: bool) -> None:
        pop, pinned = self._live.pop, self._pinned
        for key in keys:
            if pop(key, _UNKNOWN) is None:
                pinned[key] = False
            elif key in self._demoted:
                del self._demoted[key]
                pinned[key] = not hit
            elif hit and key in pinned:
                pinned[key] = False

    def unpin(self, keys: Iterable[Key]) -> None:
        pop, live = self._pinned.pop, self._live
        for key in keys:
            demoted = pop(key, None)
            if demoted:
                self._demoted[key] = None
            elif demoted is not None:
                live[key] = None

    @property
    def pinned(self) -> Collection[Key]:
        return self._pinned.keys()

    def remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for queue in (self._live, self._demoted, self._pinned):
                queue.pop(key, None)

    def peek(self, n: int, protected: Collection[Key] = ()) -> Evicted:
        demoted = list(islice(_without(self._demoted, protected), n))
        live = islice(_without(self._live, protected), n - len(demoted))
        return Evicted([*demoted, *live], len(demoted))

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
        return len(self._demoted)

    def is_demoted(self, key: Key) -> bool:
        return key in self._demoted or self._pinned.get(key, False)

    def __len__(self) -> int:
        return len(self._live) + len(self._demoted)

    def __contains__(self, key: Key) -> bool:
        return key in self._live or key in self._demoted


def _without(keys: Iterable[Key], protected: Collection[Key]) -> Iterable[Key]:
    return (key for key in keys if key not in protected) if protected else keys
