# SPDX-License-Identifier: Apache-2.0
"""Which key has which slot on disk, what leaves for it, and how much may be written.

Covers one group's slots with their states, the split of a tier's capacity into groups, and the
budget of writes. Not the order of eviction (``policy``), nor the files and the index, which follow
what is decided here. No I/O, no clock.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import filterfalse
from math import ceil, inf
from typing import Final, NamedTuple

from tiercache.blocks import Key
from tiercache.errors import ConfigError, InvariantError
from tiercache.keytable import KeyTable
from tiercache.tiers.nvme.freeslots import FreeSlots, gaps
from tiercache.tiers.nvme.policy import DiskPolicy

#: What a directory or a small file occupies.
BLOCK_BYTES: Final = 4096
#: Victims at once, where fewer would do: a millisecond, in which the scheduler waits.
MAX_VICTIMS: Final = 512
DAY_S: Final = 86_400.0
BURST_SHARE: Final = 24
"""An hour's share of the day may be written at once."""


class Allocation(NamedTuple):
    """Slots for the keys asked for, in their order, and who left for them with its slot.

    Slots of ``evicted`` keys are free again, or among ``slots``: whoever writes the index
    unpublishes them before it publishes anything that was allocated later.
    """

    slots: list[int]
    evicted: dict[Key, int]


class SlotTable:
    """The slots of one group on disk, numbered from 0 to ``slots - 1``.

    A key is unknown, writing (allocated, its record on the way to the disk) or published; a
    published key can be held by readers, and only one that is not held can be evicted. A key
    that is dropped while held is unknown at once, and its slot is free once nobody holds the key,
    whatever slot it was held for. Above ``high_water`` of the slots in use, keys are evicted down
    to ``low_water``, both rounded up to whole slots. Slots can be withheld, and do not count then,
    as long as the disk has no room for them. Locking: none, one thread calls.
    Complexity: O(1) per key given or evicted, with what the policy adds.
    """

    def __init__(
        self, slots: int, policy: DiskPolicy, *, high_water: float, low_water: float
    ) -> None:
        self.slots = slots
        self.slot_of = KeyTable(slots)
        """The published keys. Always the same table."""
        self.writing: dict[Key, int] = {}
        self.held: Counter[Key] = Counter()
        """How many times each held key is held."""
        self._policy = policy
        self._high_water, self._low_water = high_water, low_water
        self._cancelled: set[Key] = set()
        """Writing keys that were dropped."""
        self._leaving: dict[Key, list[int]] = {}
        """Slots of dropped keys that are still held."""
        self._free = FreeSlots([(0, slots)])
        self._withheld = FreeSlots([])

    def restore(self, keys: Sequence[Key], slots: Sequence[int]) -> None:
        """Publish what the index held at the start, the oldest first, in an empty table.

        Raises:
            InvariantError: a key or a slot is there twice, or there is no such slot.
        """
        if slots and not 0 <= min(slots) <= max(slots) < self.slots:
            raise InvariantError(f"restored slots are not all below {self.slots}")
        free = FreeSlots(gaps(slots, self.slots))
        self.slot_of.put(keys, slots)
        if not len(self.slot_of) == len(keys) == self.slots - len(free):
            self.slot_of.clear()
            raise InvariantError("restored keys do not have a slot each")
        self._free = free
        self._policy.insert(slots, keys)

    @property
    def used(self) -> int:
        """Slots that are neither free nor withheld."""
        return self._usable - len(self._free)

    @property
    def _usable(self) -> int:
        return self.slots - len(self._withheld)

    @property
    def _evictable(self) -> int:
        """Published keys that nobody holds. All held keys are published or leaving."""
        held_only = sum(key not in self.slot_of for key in self._leaving)
        return len(self.slot_of) - len(self.held) + held_only

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """The keys that have no slot and are not getting one, each once, in their order."""
        unpublished = self.slot_of.missing(dict.fromkeys(keys))
        return list(filterfalse(self.writing.__contains__, unpublished))

    def room(self, n: int) -> bool:
        """Whether ``n`` slots could be allocated now."""
        return n - len(self._free) <= self._evictable

    def allocate(self, keys: Collection[Key]) -> Allocation | None:
        """Give each key a slot, evicting where needed; the slots are neighbours where possible.

        All or nothing: None, and nothing changed, without ``room`` for all of them. The keys are
        writing until they are given to ``publish`` or ``abandon``.

        Raises:
            InvariantError: a key is given twice, writing or published; nothing changed.
        """
        if len(self.missing(keys)) < len(keys):
            raise InvariantError("a key that has a slot cannot be given another")
        if not self.room(len(keys)):
            return None
        evicted = self._evict(self._excess(len(keys)))
        slots = self._free.take(len(keys))
        self.writing.update(zip(keys, slots, strict=True))
        return Allocation(slots, evicted)

    def _excess(self, n: int) -> int:
        """How many keys should leave if ``n`` come."""
        used = self.used + n
        high, low = (ceil(w * self._usable) for w in (self._high_water, self._low_water))
        return min(used - low, max(n, MAX_VICTIMS)) if used > high else 0

    def _evict(self, n: int) -> dict[Key, int]:
        """Evict ``n`` keys, or all that can be: enough, as low water is at most all slots."""
        held = self.slot_of.holding(self.held)
        slots = self._policy.evict(n, held)
        keys = self.slot_of.keys_in(slots)
        self._free.give(self.slot_of.take(keys))
        return dict(zip(keys, slots, strict=True))

    def publish(self, keys: Iterable[Key]) -> list[Key]:
        """Make writing keys findable; returns those that are, in their order.

        The others, whose slots are free now, were dropped meanwhile or are not writing.
        """
        distinct = dict.fromkeys(keys)
        written = filter(self.writing.__contains__, distinct)
        published = list(filterfalse(self._cancelled.__contains__, written))
        slots = list(map(self.writing.pop, published))
        self.abandon(distinct)
        self.slot_of.put(published, slots)
        self._policy.insert(slots, published)
        return published

    def abandon(self, keys: Iterable[Key]) -> None:
        """Free the slots of writing keys, once nothing writes there; others are ignored."""
        abandoned = {key: self.writing.pop(key) for key in keys if key in self.writing}
        self._cancelled.difference_update(abandoned)
        self._free.give(abandoned.values())

    def touch(self, keys: Iterable[Key]) -> None:
        """Note a use of published keys and undo their demotion; others are ignored.

        A key that is there several times was used as often.
        """
        self._policy.touch(self.slot_of.find(keys))

    def demote(self, keys: Iterable[Key]) -> None:
        """Line published keys up to leave before all others; others are ignored."""
        self._policy.demote(self.slot_of.find(dict.fromkeys(keys)))

    def hold(self, keys: list[Key]) -> list[int]:
        """Keep published keys from eviction until they are released; returns their slots.

        Holds nest. Raises KeyError, and holds nothing, if a key is not published.
        """
        slots = self.slot_of.locate(keys)
        self.held.update(keys)
        return slots

    def release(self, keys: Iterable[Key]) -> None:
        """Undo one hold of each key; keys that are not held are ignored."""
        for key in keys:
            count = self.held.pop(key, 0)
            if count > 1:
                self.held[key] = count - 1
            elif key in self._leaving:
                self._free.give(self._leaving.pop(key))

    def drop(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Unpublish keys, whose slots are returned; those that are not held are free at once.

        Keys that are writing are not published when they are written. Unknown keys are ignored.
        """
        distinct = dict.fromkeys(keys)
        self._cancelled.update(filter(self.writing.__contains__, distinct))
        known = self.slot_of.known(distinct)
        slots = self.slot_of.take(known)
        self._policy.remove(slots)
        dropped = dict(zip(known, slots, strict=True))
        for key in self.held.keys() & dropped.keys():
            self._leaving.setdefault(key, []).append(dropped[key])
        self._free.give(slot for key, slot in dropped.items() if key not in self.held)
        return dropped

    def clear(self) -> None:
        """Drop every key; O(slots), a quarter of the time that ``drop`` takes for a million."""
        self.drop([*self.held, *self.writing])
        slots = [slot for slot, key in enumerate(self.slot_of.holders) if key is not None]
        self.slot_of.clear()
        self._policy.remove(slots)
        self._free.give(slots)

    def withhold(self, parts: Iterable[range]) -> None:
        """Allocate no free slot of ``parts``, until ``bring_back``."""
        for part in parts:
            for start, end in self._free.take_within(part):
                self._withheld.give_run(start, end)

    def bring_back(self) -> None:
        """End what ``withhold`` did."""
        for start, end in self._withheld.take_within(range(self.slots)):
            self._free.give_run(start, end)

    def validate(self) -> None:
        """Check every invariant of the table in O(slots); raises InvariantError."""
        self._free.validate()
        self._withheld.validate()
        leaving = [slot for slots in self._leaving.values() for slot in slots]
        taken = [*self.slot_of.values(), *self.writing.values(), *leaving]
        checks = {
            "slots are counted once": sorted([*taken, *self._free, *self._withheld])
            == list(range(self.slots)),
            "used slots are counted": self.used == len(taken),
            "writing keys are not published": not self.writing.keys() & self.slot_of.keys(),
            "cancelled keys are writing": self._cancelled <= self.writing.keys(),
            "held keys are published or leaving": self.held.keys()
            <= self.slot_of.keys() | self._leaving.keys(),
            "leaving keys are held": self._leaving.keys() <= self.held.keys(),
            "holds are counted from 1": all(count > 0 for count in self.held.values()),
            "a slot knows its holder": self.slot_of.keys_in(range(self.slots + 1))
            == sorted(self.slot_of, key=self.slot_of.__getitem__),
            "the order holds the published keys": len(self._policy) == len(self.slot_of)
            and all(slot in self._policy for slot in self.slot_of.values()),
        }
        for invariant, holds in checks.items():
            if not holds:
                raise InvariantError(f"slots on disk: {invariant}: violated")


class WriteBudget:
    """Bytes that may be written per day: a bucket that fills up steadily and holds an hour's share.

    ``bytes_per_day`` of None sets no limit. More than a full bucket holds can never be taken at
    once. Locking: none, one thread calls.
    """

    def __init__(self, bytes_per_day: int | None) -> None:
        self._rate = (bytes_per_day or 0) / DAY_S
        self._limited = bytes_per_day is not None
        self._most = self._left = (bytes_per_day or 0) / BURST_SHARE
        self._filled_at = -inf

    def take(self, nbytes: int, now: float) -> bool:
        """Take ``nbytes`` if they are left at ``now``, in seconds of a monotonic clock.

        A clock that was set back fills nothing until it goes on from there.
        """
        if not self._limited:
            return True
        passed = max(0.0, now - self._filled_at)
        self._filled_at = now
        self._left = min(self._most, self._left + passed * self._rate)
        if nbytes > self._left:
            return False
        self._left -= nbytes
        return True


def slack_bytes(slots: Mapping[int, int]) -> int:
    """What lies around records and index: the namespace, its two small files, the directories."""
    return (4 + len(slots)) * BLOCK_BYTES


def split_capacity(
    capacity: int,
    demand: Mapping[int, tuple[int, int]],
    index_bytes: Callable[[Mapping[int, int]], int],
) -> dict[int, int]:
    """Slots on disk of each group, as many as ``capacity`` bytes hold with the index.

    ``demand`` has each group's slots in the primary tier, whose proportion is kept, and the bytes
    of its records. ``index_bytes`` tells the bytes of an index for slots by group; more slots
    never take less.

    Raises:
        ConfigError: a group would be left without a slot; names the least capacity that works.
    """
    largest = max(slots for slots, _ in demand.values())

    def share(scale: int) -> dict[int, int]:
        return {group: max(1, slots * scale // largest) for group, (slots, _) in demand.items()}

    def size(scale: int) -> int:
        slots = share(scale)
        records = sum(slots[group] * nbytes for group, (_, nbytes) in demand.items())
        return records + index_bytes(slots) + slack_bytes(slots)

    if size(1) > capacity:
        raise ConfigError("capacity", capacity, f"at least {size(1)} bytes, a slot for each group")
    # The largest group alone would have no more slots than this.
    beyond = capacity // min(nbytes for _, nbytes in demand.values()) + 1
    return share(bisect_right(range(1, beyond), capacity, key=size))
