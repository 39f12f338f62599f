# SPDX-License-Identifier: Apache-2.0
"""Which key has which slot, and which slot holds which key: for millions, without a long call.

Covers one group's table in memory, of RAM or of a disk. Who gets a slot, and who goes, is not
known here.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from tiercache.blocks import Key

#: A dict that grows is built again, which takes 0.1 s at a million keys; by the first byte of a
#: key, that is 256 times 0.2 ms, each at its own time.
PARTS: Final = 256


class KeyTable(Mapping[Key, int]):
    """Keys and their slots from 0 to ``capacity - 1``, in no order.

    A prefix mostly lies in neighbouring slots, so whoever asks for one is answered by comparing
    what neighbours hold: looking up each of 30,000 keys among a million misses the processor's
    caches two or three times per key. Keys are hashes, so that their first bytes are even.

    Complexity: O(1) per key. Locking: none, as for a dict.
    """

    def __init__(self, capacity: int) -> None:
        self.holders: list[Key | None] = [None] * (capacity + 1)
        """The key in each slot, and None behind the last one. Always the same list."""
        self._parts: list[dict[Key, int]] = [{} for _ in range(PARTS)]

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, bytes)
        return key in self._parts[key[0]]

    def __getitem__(self, key: Key) -> int:
        return self._parts[key[0]][key]

    def __iter__(self) -> Iterator[Key]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    # --- changes

    def put(self, keys: Iterable[Key], slots: Iterable[int]) -> None:
        """Give each key, which has no slot, one that nobody has."""
        parts, holders = self._parts, self.holders
        for key, slot in zip(keys, slots, strict=True):
            parts[key[0]][key] = slot
            holders[slot] = key

    def take(self, keys: Iterable[Key]) -> list[int]:
        """Remove keys and return their slots.

        Raises KeyError at the first that is not in the table; those before it are removed.
        """
        parts, holders = self._parts, self.holders
        slots = []
        for key in keys:
            slot = parts[key[0]].pop(key)
            holders[slot] = None
            slots.append(slot)
        return slots

    def clear(self) -> None:
        for part in self._parts:
            part.clear()
        self.holders[:] = [None] * len(self.holders)

    # --- many keys at once

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """The keys that are not in the table, in their order; those that are mostly come first."""
        keys, parts = list(keys), self._parts
        return [key for key in keys[self.leading(keys) :] if key not in parts[key[0]]]

    def known(self, keys: Iterable[Key]) -> list[Key]:
        """The keys that are in the table, in their order."""
        parts = self._parts
        return [key for key in keys if key in parts[key[0]]]

    def find(self, keys: Iterable[Key]) -> list[int]:
        """The slots of those keys that are in the table, in their order.

        Those of a list are expected to follow each other.
        """
        if not isinstance(keys, list):
            parts = self._parts
            found = [parts[key[0]].get(key) for key in keys]
            return [slot for slot in found if slot is not None]
        slots: list[int] = []
        for run in self._runs(keys, 0, gaps=True):
            slots += run
        return slots

    def keys_in(self, slots: Iterable[int]) -> list[Key]:
        """What those of ``slots`` hold that hold anything, in their order."""
        return [key for key in map(self.holders.__getitem__, slots) if key is not None]

    def holding(self, keys: Collection[Key]) -> Container[int]:
        """The slots that hold one of ``keys``, for who asks of few slots and has many keys."""
        return _Holding(self.holders, keys) if keys else ()

    def locate(self, keys: list[Key]) -> list[int]:
        """The slots of keys that mostly follow each other; KeyError for one not in the table."""
        slots: list[int] = []
        for run in self._runs(keys, 0):
            slots += run
        if len(slots) < len(keys):
            raise KeyError(keys[len(slots)])
        return slots

    def leading(self, keys: list[Key], at: int = 0) -> int:
        """How many of the keys from ``keys[at]`` on come before the first that is missing."""
        return sum(map(len, self._runs(keys, at)))

    def _runs(self, keys: list[Key], at: int, *, gaps: bool = False) -> Iterator[range]:
        """Where the keys from ``keys[at]`` on lie, neighbours together.

        Until one is missing; with ``gaps``, those that are missing are left out.
        """
        holders, reach = self.holders, len(keys)
        while at < len(keys):
            first = self._parts[keys[at][0]].get(keys[at])
            if first is None and gaps:
                at += 1
                continue
            if first is None:
                return
            # The first ``same`` keys are there one after another; ``differ`` keys are not.
            same, differ = 1, min(reach, len(keys) - at) + 1
            middle = differ - 1
            while same < middle:
                if holders[first + same : first + middle] == keys[at + same : at + middle]:
                    same = middle
                else:
                    differ = middle
                middle = (same + differ) // 2
            yield range(first, first + same)
            at += same
            reach = 2 * same


class _Holding:
    """Slots by what they hold."""

    def __init__(self, holders: Sequence[Key | None], keys: Container[object]) -> None:
        self._holders = holders
        self._keys = keys

    def __contains__(self, slot: object) -> bool:
        assert isinstance(slot, int)
        return self._holders[slot] in self._keys
