# SPDX-License-Identifier: Apache-2.0
"""What is in the store, as far as this server knows. Pure: no clock of its own.

Covers keys that this server stored or asked for, in the order in which it forgets them. The store
evicts by rules of its own: whoever is listed here may be gone, who is not may be there.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping

from tiercache.blocks import Key, key_group

#: Seconds after which a key that is asked for is looked up again.
FRESH_S = 30.0
#: Seconds that a key that could not be loaded is not believed in, and how many such keys at most.
DISTRUST_S = 60.0
MAX_DISTRUSTED = 4096


class Known:
    """Keys with up to ``capacity`` bytes of records; beyond, the least recent are forgotten.

    ``sizes``: bytes of a record by group. Locking: none. Raises nothing.
    """

    def __init__(self, sizes: Mapping[int, int], capacity: int) -> None:
        self.confirmed: OrderedDict[Key, float] = OrderedDict()
        """When each key was stored or found, the next one to be forgotten first."""
        self.used = 0
        """Bytes of these and of what is being stored."""
        self.evicted = 0
        self._sizes = sizes
        self._capacity = capacity
        self._storing: dict[Key, None] = {}
        self._superseded: set[Key] = set()
        """Demoted keys that are still being stored."""
        self._distrusted: OrderedDict[Key, float] = OrderedDict()

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        return [key for key in keys if key not in self.confirmed and key not in self._storing]

    def begin(self, group_id: int, keys: Collection[Key]) -> bool:
        """Make room for keys that are to be stored; False, and nothing changed, without any."""
        needed = len(keys) * self._sizes[group_id]
        if needed > self._capacity - sum(self._sizes[key_group(key)] for key in self._storing):
            return False
        if len(self.missing(keys)) < len(keys):
            return False
        self._make_room(needed)
        self._storing.update(dict.fromkeys(keys))
        self.used += needed
        return True

    def end(self, keys: Iterable[Key], failed: Collection[Key], now: float) -> None:
        """What ``begin`` took is stored, but for ``failed``."""
        for key in keys:
            del self._storing[key]
            if key in failed:
                self.used -= self._sizes[key_group(key)]
                continue
            self.confirmed[key] = now
            self._distrusted.pop(key, None)
            if key in self._superseded:
                self.confirmed.move_to_end(key, last=False)
        self._superseded.difference_update(keys)

    def found(self, keys: Iterable[Key], now: float, room: int | None = None) -> int:
        """Keys were found in the store; as many of the first ones as ``room`` bytes have room for.

        Returns what is left of them, for the next keys of the same question.
        """
        room = self._capacity if room is None else room
        for key in keys:
            size = self._sizes[key_group(key)]
            room -= size
            if room < 0 or key in self._storing:
                continue
            if key not in self.confirmed:
                if not self._make_room(size):
                    continue
                self.used += size
            self.confirmed[key] = now
            self.confirmed.move_to_end(key)
        return room

    def _make_room(self, nbytes: int) -> bool:
        while self.confirmed and self.used + nbytes > self._capacity:
            key, _ = self.confirmed.popitem(last=False)
            self.used -= self._sizes[key_group(key)]
            self.evicted += 1
        return self.used + nbytes <= self._capacity

    def doubtful(self, keys: Iterable[Key], now: float) -> list[Key]:
        """The keys that are worth a question."""
        while self._distrusted and next(iter(self._distrusted.values())) <= now - DISTRUST_S:
            self._distrusted.popitem(last=False)
        fresh = now - FRESH_S
        return [
            key
            for key in keys
            if self.confirmed.get(key, fresh) <= fresh
            and key not in self._storing
            and key not in self._distrusted
        ]

    def drop(self, keys: Iterable[Key]) -> None:
        """Keys were not there."""
        for key in keys:
            if self.confirmed.pop(key, None) is not None:
                self.used -= self._sizes[key_group(key)]

    def distrust(self, keys: Iterable[Key], now: float) -> None:
        """Keys were there but of no use: they are not looked for, for a while."""
        for key in keys:
            self._distrusted[key] = now
            self._distrusted.move_to_end(key)
            if len(self._distrusted) > MAX_DISTRUSTED:
                self._distrusted.popitem(last=False)

    def touch(self, keys: Collection[Key]) -> None:
        self._superseded.difference_update(keys)
        for key in filter(self.confirmed.__contains__, keys):
            self.confirmed.move_to_end(key)

    def demote(self, keys: Collection[Key]) -> None:
        self._superseded.update(filter(self._storing.__contains__, keys))
        for key in filter(self.confirmed.__contains__, keys):
            self.confirmed.move_to_end(key, last=False)

    def doubt(self) -> None:
        """Forget what is confirmed; what is being stored goes on."""
        self.used -= sum(self._sizes[key_group(key)] for key in self.confirmed)
        self.confirmed.clear()

    def clear(self) -> None:
        """Forget everything, what is being stored included: ``end`` is not called for it."""
        self.confirmed.clear()
        self._storing.clear()
        self._superseded.clear()
        self._distrusted.clear()
        self.used = 0
