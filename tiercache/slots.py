# SPDX-License-Identifier: Apache-2.0
"""One group's slots: which key holds which slot, in which state.

Covers free, storing, ready and pinned slots of a single group. Which keys belong together
(checkpoints, requests) is not known here.
"""

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from itertools import filterfalse, islice
from typing import NamedTuple

import numpy as np

from tiercache.blocks import GroupKind, GroupSpec, Key
from tiercache.errors import InvariantError
from tiercache.keytable import KeyTable
from tiercache.policies import Policy
from tiercache.slotqueue import Slots


class Presence(IntEnum):
    """What a pool knows about a key."""

    MISSING = 0
    STORING = 1
    """It has a slot that is still being written."""
    READY = 2
    """It can be read."""


# Asked once per key of a prompt; in Python 3.11 ``Presence.READY`` takes longer than the look-up.
_MISSING, _STORING, _READY = Presence.MISSING, Presence.STORING, Presence.READY


class Evicted(NamedTuple):
    """Keys in the order of their eviction; the first ``demoted`` of them were demoted."""

    keys: list[Key]
    demoted: int


NOTHING_EVICTED = Evicted([], 0)


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


class Located(NamedTuple):
    """Ready keys of one group, and the slot of each."""

    pool: "SlotPool"
    keys: list[Key]
    slots: Slots


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
        self.ready = KeyTable(capacity)
        self.storing: dict[Key, int] = {}
        self._pins = np.zeros(capacity, np.int32)
        """How many readers pin each slot."""
        self._pinned_at = np.zeros(capacity, np.int64)
        """The order in which slots were pinned."""
        self._next_pin = 0
        self._free = list(range(capacity - 1, -1, -1))
        self._foreign: set[int] = set()
        """Slots that a tier still writes to although their entries are dropped."""

    def state(self, key: Key) -> Presence:
        if key in self.ready:
            return _READY
        return _STORING if key in self.storing else _MISSING

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """The keys that have no slot, in their order."""
        unready = self.ready.missing(keys)
        return list(filterfalse(self.storing.__contains__, unready)) if self.storing else unready

    def fits(self, n: int, protected: Collection[Key] = ()) -> bool:
        """Whether ``n`` slots could be reserved now without touching ``protected`` keys."""
        short = n - len(self._free)
        if short <= max(0, len(self.policy) - len(protected)):
            return True
        return len(self.policy.peek(short, self.ready.holding(protected)).slots) == short

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
        self.storing.update(zip(keys, slots, strict=True))
        return slots, evicted

    def _evict(self, n: int, protected: Collection[Key]) -> Evicted:
        victims = self.policy.evict(n, self.ready.holding(protected))
        if victims is None:
            raise InvariantError(f"group {self.spec.group_id} cannot evict {n} keys")
        keys = self.ready.keys_in(victims.slots)
        self._free += self.ready.take(keys)
        return Evicted(keys, victims.demoted)

    def commit(self, keys: Collection[Key]) -> list[Key]:
        """Make storing keys readable; returns those that were storing, as they were reserved."""
        distinct = dict.fromkeys(_in_order(keys, self.storing))
        stored = list(filter(self.storing.__contains__, distinct))
        slots = list(map(self.storing.pop, stored))
        self.ready.put(stored, slots)
        self.policy.insert(slots, stored)
        return stored

    def fail(self, keys: Iterable[Key]) -> list[Key]:
        """Free the slots of storing keys; returns those that were storing."""
        failed = [key for key in keys if key in self.storing]
        self._free.extend(map(self.storing.pop, failed))
        return failed

    def locate(self, keys: list[Key]) -> Slots:
        """Slots of ready keys, in their order. Raises KeyError if one of them is not ready."""
        return np.array(self.ready.locate(keys), np.int64)

    # --- pins

    def pin(self, slots: Slots, *, hit: bool) -> None:
        """Protect distinct ready slots from eviction until unpinned. Pins nest."""
        self._pins[slots] += 1
        self._pinned_at[slots] = np.arange(self._next_pin, self._next_pin + len(slots))
        self._next_pin += len(slots)
        self.policy.pin(slots, hit=hit)

    def unpin(self, keys: Iterable[Key], *, hit: bool = True) -> None:
        """Undo one pin of each key; keys that are not pinned are ignored.

        After a hit, keys come back to the eviction order as a request leaves them, whatever their
        order here: nobody puts them right if the request was aborted while it loaded. Others come
        in order.
        """
        distinct = keys if isinstance(keys, AbstractSet) else list(dict.fromkeys(keys))
        self.unpin_slots(self._find(distinct), hit=hit)

    def unpin_slots(self, slots: Slots, *, hit: bool = True) -> None:
        """As ``unpin``, of distinct slots."""
        pinned = slots[self._pins[slots] > 0]
        self._pins[pinned] -= 1
        released = pinned[self._pins[pinned] == 0]
        if hit:
            released = released[np.argsort(self._pinned_at[released])]
        self.policy.unpin(released[::-1] if self.spec.kind is GroupKind.FULL else released)

    def _find(self, keys: Iterable[Key]) -> Slots:
        """Slots of those keys that are ready, in their order."""
        return np.array(self.ready.find(keys), np.int64)

    def pinned(self, n: int | None = None) -> list[Key]:
        """The first ``n`` pinned keys, or all of them, in any order; O(capacity)."""
        return self.ready.keys_in(islice(np.flatnonzero(self._pins).tolist(), n))

    # --- the order of eviction

    def next_victims(self, n: int) -> Evicted:
        """Who would be evicted next, ``n`` keys or fewer."""
        victims = self.policy.peek(n)
        return Evicted(self.ready.keys_in(victims.slots), victims.demoted)

    def touch(self, keys: Iterable[Key]) -> None:
        """Make ready keys the most recent ones and undo their demotion; others are ignored."""
        self.policy.touch(self._find(keys))

    def demote(self, keys: Iterable[Key], *, first: bool = False) -> list[Key]:
        """Evict ready keys before others, as `Policy.demote`; returns those that were not yet."""
        return self.ready.keys_in(self.policy.demote(self._find(keys), first=first))

    def demoted(self, keys: Iterable[Key]) -> list[Key]:
        """Those of ``keys`` that are demoted, in their order."""
        if not self.policy.has_demoted:
            return []
        return self.ready.keys_in(self.policy.demoted_of(self._find(keys)))

    def appraise(self, key: Key, worth: float) -> None:
        """Tell the policy what would be lost with ``key``, in tokens, if it is ready."""
        slot = self.ready.get(key)
        if slot is not None:
            self.policy.appraise(slot, worth)

    def settle(self, used: dict[Key, bool]) -> None:
        """Commit the recency of a finished request: of its ready keys, see `Policy.settle`."""
        try:
            keys = list(used)
            slots = self.locate(keys)
        except KeyError:
            keys = self.ready.known(used)
            slots = self.locate(keys)
        reused = map(used.__getitem__, keys)
        self.policy.settle(slots, reused, tail_first=self.spec.kind is GroupKind.FULL)

    def clear(self, foreign: Collection[int] = ()) -> None:
        """Drop every entry, whatever its state.

        ``foreign`` slots are still written to by somebody; they stay out of use until
        ``give_back``.
        """
        self.policy = type(self.policy)(self.capacity)
        self.ready.clear()
        self.storing.clear()
        self._pins[:] = 0
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
        return int(self._pins.sum())

    def counts(self) -> SlotCounts:
        """Slots by state; pinned ones count as pinned, demoted or not, foreign ones as storing."""
        demoted, unpinned = self.policy.demoted, len(self.policy)
        storing = len(self.storing) + len(self._foreign)
        pinned = len(self.ready) - unpinned
        return SlotCounts(len(self._free), storing, unpinned - demoted, demoted, pinned)

    def validate(self) -> None:
        """Check every invariant of the pool in O(capacity); raises InvariantError."""
        used = [*self.ready.values(), *self.storing.values(), *self._foreign]
        checks = {
            "slots are counted once": sorted(self._free + used) == list(range(self.capacity)),
            "a slot knows its holder": self.ready.keys_in(self.ready.values()) == list(self.ready)
            and sum(holder is not None for holder in self.ready.holders) == len(self.ready),
            "storing keys are not ready": not self.storing.keys() & self.ready.keys(),
            "pinned slots are ready": all(
                self.ready.holders[slot] is not None for slot in np.flatnonzero(self._pins)
            )
            and not np.any(self._pins < 0),
            "the order holds the ready, unpinned slots": all(
                (slot in self.policy) != bool(self._pins[slot]) for slot in self.ready.values()
            )
            and len(self.policy) == len(self.ready) - np.count_nonzero(self._pins),
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
