# SPDX-License-Identifier: Apache-2.0
"""One group's slots: which key holds which slot, in which state.

Covers free, storing, ready and pinned slots of a single group. Which keys belong together
(checkpoints, requests) is not known here.
"""

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from itertools import filterfalse
from typing import NamedTuple

from tiercache.blocks import GroupKind, GroupSpec, Key
from tiercache.errors import InvariantError
from tiercache.policies import Evicted, Policy

NOTHING_EVICTED = Evicted([], 0)


class Presence(IntEnum):
    """What a pool knows about a key."""

    MISSING = 0
    STORING = 1
    """It has a slot that is still being written."""
    READY = 2
    """It can be read."""


# Asked once per key of a prompt; in Python 3.11 ``Presence.READY`` takes longer than the look-up.
_MISSING, _STORING, _READY = Presence.MISSING, Presence.STORING, Presence.READY


class SlotCounts(NamedTuple):
    """Slots of one group by state; they add up to its capacity."""

    free: int
    storing: int
    live: int
    demoted: int
    pinned: int

    @property
    def spare(self) -> int:
        """How many stores it takes before a live entry is evicted."""
        return self.free + self.demoted


class SlotPool:
    """The slots of one group, numbered from 0 to ``capacity - 1``.

    A key is missing, storing (reserved, being written) or ready; a ready key may be pinned by
    readers, and only a ready, unpinned key can be evicted. Locking: none, the caller holds one
    lock across every decision that spans several calls.
    """

    def __init__(self, spec: GroupSpec, capacity: int, policy: Policy) -> None:
        self.spec = spec
        self.capacity = capacity
        self.policy = policy
        self.ready: dict[Key, int] = {}
        self.storing: dict[Key, int] = {}
        self.holders: list[Key | None] = [None] * (capacity + 1)
        """The ready key in each slot, and None behind the last one.

        Blocks of one request mostly lie in neighbouring slots, so whoever reads a prefix finds
        its next key here without a look into a table of a million keys.
        """
        self._extra_pins: dict[Key, int] = {}
        """Pins beyond the first of each pinned key."""
        self._free = list(range(capacity - 1, -1, -1))
        self._foreign: set[int] = set()
        """Slots that a tier still writes to although their entries are dropped."""

    def state(self, key: Key) -> Presence:
        if key in self.ready:
            return _READY
        return _STORING if key in self.storing else _MISSING

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """The keys that have no slot, in their order."""
        unready = filterfalse(self.ready.__contains__, keys)
        return list(filterfalse(self.storing.__contains__, unready) if self.storing else unready)

    def fits(self, n: int, protected: Collection[Key] = ()) -> bool:
        """Whether ``n`` slots could be reserved now without touching ``protected`` keys."""
        short = n - len(self._free)
        if short <= len(self.policy) - len(protected):
            return True
        return short <= 0 or len(self.policy.peek(short, protected).keys) == short

    def reserve(
        self, keys: Sequence[Key], protected: Collection[Key] = ()
    ) -> tuple[list[int], Evicted]:
        """Give each of the missing ``keys`` a slot, evicting what is needed but ``protected``.

        The caller has made sure of ``fits(len(keys), protected)``.
        """
        evicted = NOTHING_EVICTED
        if len(keys) > len(self._free):
            evicted = self._evict(len(keys) - len(self._free), protected)
        slots = [self._free.pop() for _ in keys]
        for slot in slots:
            self.holders[slot] = None
        self.storing.update(zip(keys, slots, strict=True))
        return slots, evicted

    def _evict(self, n: int, protected: Collection[Key]) -> Evicted:
        evicted = self.policy.evict(n, protected)
        if evicted is None:
            raise InvariantError(f"group {self.spec.group_id} cannot evict {n} keys")
        self._free.extend(map(self.ready.pop, evicted.keys))
        return evicted

    def commit(self, keys: Collection[Key]) -> list[Key]:
        """Make storing keys readable; returns those that were storing, as they were reserved."""
        distinct = dict.fromkeys(_in_order(keys, self.storing))
        stored = list(filter(self.storing.__contains__, distinct))
        slots = list(map(self.storing.pop, stored))
        for slot, key in zip(slots, stored, strict=True):
            self.holders[slot] = key
        self.ready.update(zip(stored, slots, strict=True))
        self.policy.insert(stored)
        return stored

    def fail(self, keys: Iterable[Key]) -> list[Key]:
        """Free the slots of storing keys; returns those that were storing."""
        failed = [key for key in keys if key in self.storing]
        self._free.extend(map(self.storing.pop, failed))
        return failed

    def locate(self, keys: list[Key]) -> list[int]:
        """Slots of ready keys, in their order. Raises KeyError if one of them is not ready."""
        slots: list[int] = []
        step = len(keys)
        while len(slots) < len(keys):
            run = keys[len(slots) : len(slots) + step]
            first = self.ready[run[0]]
            if len(run) == 1 or self.holders[first : first + len(run)] == run:
                slots += range(first, first + len(run))
                step *= 2
            else:
                step = -(-len(run) // 2)
        return slots

    def pin(self, keys: Collection[Key], *, hit: bool) -> None:
        """Protect ready keys from eviction until unpinned.

        Pins nest, for distinct keys in one call.
        """
        pinned = self.policy.pinned
        for key in filter(pinned.__contains__, keys) if pinned else ():
            self._extra_pins[key] = self._extra_pins.get(key, 0) + 1
        self.policy.pin(keys, hit=hit)

    def unpin(self, keys: Iterable[Key], *, hit: bool = True) -> None:
        """Undo one pin of each key; keys that are not pinned are ignored.

        After a hit, keys come back to the eviction order as a request leaves them, whatever their
        order here: nobody puts them right if the request was aborted while it loaded. Others come
        in order, in small batches, and beside many that are pinned.
        """
        released = dict.fromkeys(keys)
        for key in list(filter(self._extra_pins.__contains__, released)):
            del released[key]
            self._drop_extra_pin(key)
        in_order = list(filter(released.__contains__, self.policy.pinned) if hit else released)
        self.policy.unpin(reversed(in_order) if self.spec.kind is GroupKind.FULL else in_order)

    def _drop_extra_pin(self, key: Key) -> None:
        self._extra_pins[key] -= 1
        if not self._extra_pins[key]:
            del self._extra_pins[key]

    def clear(self, foreign: Collection[int] = ()) -> None:
        """Drop every entry, whatever its state.

        ``foreign`` slots are still written to by somebody; they stay out of use until
        ``give_back``.
        """
        self.policy = type(self.policy)(self.capacity)
        self.ready.clear()
        self.storing.clear()
        self.holders[:] = [None] * (self.capacity + 1)
        self._extra_pins.clear()
        self._foreign |= set(foreign)
        free = range(self.capacity - 1, -1, -1)
        self._free = [slot for slot in free if slot not in self._foreign]

    @property
    def free(self) -> int:
        """Slots that nobody uses."""
        return len(self._free)

    def give_back(self, slots: Iterable[int]) -> None:
        """Nobody writes to these foreign slots any more."""
        freed = self._foreign.intersection(slots)
        self._foreign -= freed
        self._free.extend(freed)

    @property
    def pins(self) -> int:
        """Pins held by all readers together."""
        return len(self.policy.pinned) + sum(self._extra_pins.values())

    def counts(self) -> SlotCounts:
        """Slots by state; pinned ones count as pinned, demoted or not, foreign ones as storing."""
        demoted = self.policy.demoted
        live = len(self.policy) - demoted
        storing = len(self.storing) + len(self._foreign)
        return SlotCounts(len(self._free), storing, live, demoted, len(self.policy.pinned))

    def validate(self) -> None:
        """Check every invariant of the pool in O(capacity); raises InvariantError."""
        used = [*self.ready.values(), *self.storing.values(), *self._foreign]
        checks = {
            "slots are counted once": sorted(self._free + used) == list(range(self.capacity)),
            "a slot knows its holder": all(
                self.holders[slot] == key for key, slot in self.ready.items()
            )
            and sum(holder is not None for holder in self.holders) == len(self.ready),
            "storing keys are not ready": not self.storing.keys() & self.ready.keys(),
            "pinned keys are ready": set(self.policy.pinned) <= self.ready.keys(),
            "pins are counted from the first": self._extra_pins.keys() <= set(self.policy.pinned)
            and all(count > 0 for count in self._extra_pins.values()),
            "the order holds the ready, unpinned keys": all(
                (key in self.policy) != (key in self.policy.pinned) for key in self.ready
            )
            and len(self.policy) == len(self.ready) - len(self.policy.pinned),
            "counts add up": sum(self.counts()) == self.capacity,
        }
        for invariant, holds in checks.items():
            if not holds:
                raise InvariantError(f"group {self.spec.group_id}: {invariant}: violated")


def _in_order(keys: Iterable[Key], table: Collection[Key]) -> Iterable[Key]:
    """Keys of a set in the order of ``table``, if that is not much longer; others as they are.

    vLLM reports what is done as sets. In prefix order the tables fill up in the order in which
    they are read, which halves the time of looking up a long prefix among a million keys.
    """
    if isinstance(keys, AbstractSet) and len(table) <= 2 * len(keys):
        return [key for key in table if key in keys]
    return keys
