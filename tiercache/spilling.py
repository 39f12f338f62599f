# SPDX-License-Identifier: Apache-2.0
"""Copying entries of the primary tier into the secondary ones: what, and when.

Covers write-through of what was stored, write-ahead of what is about to be evicted, and the pins
meanwhile. Whether a tier takes an entry, and where to, is the tier's business.
"""

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import filterfalse
from math import inf
from typing import NamedTuple

from tiercache.blocks import GroupKind, Key, key_hash
from tiercache.events import Event, EventKind
from tiercache.jobs import STEP_KEYS, Jobs
from tiercache.primary import PrimaryTier
from tiercache.requests import Request
from tiercache.slots import SlotPool
from tiercache.tiers.base import Done, SecondaryTier

#: Bytes of one job: long runs cross into the interpreter seldom.
BATCH_BYTES = 64 << 20
#: How far ahead of eviction an ``on_evict`` tier is kept: a share of the pool, and at most.
AHEAD_SHARE = 16
MAX_AHEAD = 1024
#: Bytes of a group that are on their way at most: a second's work, should the tiers be slow.
IN_FLIGHT_BYTES = 1 << 30
#: Seconds before what is about to be evicted is offered again to a tier that declined.
DECLINED_REST_S = 1.0
#: Seconds that a state waits for a later one to supersede it while its request goes on.
STATE_REST_S = 2.0


class Resting(NamedTuple):
    """States that may be superseded soon: until they are due, or their writer is finished."""

    due: float
    pool: SlotPool
    keys: list[Key]
    writer: Request


class Spiller:
    """Feeds the secondary tiers.

    Entries that wait are not pinned, so they may be gone when their turn comes. At most half of a
    pool, and ``IN_FLIGHT_BYTES`` of it, is pinned while tiers read it. ``clock``: seconds that only
    grow. Locking: none, as for the primary tier.
    """

    def __init__(self, primary: PrimaryTier, jobs: Jobs, clock: Callable[[], float]) -> None:
        self.missed = 0
        """Entries that were evicted while they waited."""
        self._primary = primary
        self._jobs = jobs
        self._now = clock
        self._on_evict = [tier for tier in jobs.tiers if tier.spill == "on_evict"]
        self._waiting: dict[SecondaryTier, deque[tuple[SlotPool, Sequence[Key]]]] = {
            tier: deque() for tier in jobs.tiers if tier.spill == "on_store"
        }
        self._resting: list[Resting] = []
        sizes = jobs.tiers[0].memory.record_bytes
        self._limit = {
            group_id: max(1, min(pool.capacity // 2, IN_FLIGHT_BYTES // sizes[group_id]))
            for group_id, pool in primary.pools.items()
        }
        """Pins per group at most."""
        self._reading: Counter[tuple[SecondaryTier, int]] = Counter()
        """Pins per tier and group."""
        self._declined: dict[SecondaryTier, float] = {}
        """Until when a tier is not offered what is about to be evicted."""
        self._era = 0
        primary.journal.listeners.append(self._notice)

    def has_work(self, tier: SecondaryTier) -> bool:
        """Whether something waits to be stored in ``tier``."""
        queue = self._waiting.get(tier)
        return queue is not None and bool(queue or self._resting)

    def queued(self, tier: SecondaryTier) -> int:
        """Entries that wait to be stored in ``tier``."""
        queue = self._waiting.get(tier)
        if queue is None:
            return 0
        resting = sum(len(rest.keys) for rest in self._resting)
        return resting + sum(len(keys) for _, keys in queue)

    def _notice(self, event: Event) -> None:
        pool = self._primary.pools[event.group_id]
        if event.kind is EventKind.STORED and self._waiting:
            self._enqueue(pool, list(event.keys))
        elif event.kind in (EventKind.DEMOTED, EventKind.STRANDED):
            for tier in self._jobs.tiers:
                tier.demote(event.keys)
        elif event.kind is EventKind.RESTORED:
            for tier in self._jobs.tiers:
                tier.touch(event.keys)
            if pool.spec.kind is GroupKind.STATE:  # superseded, it was not stored
                self._wait(pool, list(event.keys))

    def _enqueue(self, pool: SlotPool, keys: list[Key]) -> None:
        if pool.spec.kind is GroupKind.STATE:
            due = self._now() + STATE_REST_S
            self._resting.append(Resting(due, pool, keys, self._primary.writer(keys[0])))
        else:
            self._wait(pool, keys)

    def _wait(self, pool: SlotPool, keys: Sequence[Key]) -> None:
        for queue in self._waiting.values():
            queue.append((pool, keys))

    def pump(self, *, hurry: bool = False) -> None:
        """Start what can be started in a step; ``hurry``: whatever there is room for, now."""
        self._rouse(hurry=hurry)
        for tier, queue in self._waiting.items():
            if queue and not tier.stats().healthy:  # it would decline, and may hold all the pins
                queue.clear()
            self._feed(tier, queue, sys.maxsize if hurry else STEP_KEYS)
        for tier in self._on_evict:
            for pool in self._primary.pools.values():
                if self._declined.get(tier, -inf) <= self._now():
                    self._write_ahead(tier, pool)

    def _rouse(self, *, hurry: bool) -> None:
        now, resting = self._now(), self._resting
        self._resting = []
        for rest in resting:
            if hurry or rest.due <= now or rest.writer.finished:
                self._wait(rest.pool, rest.keys)
            else:
                self._resting.append(rest)

    def _feed(
        self, tier: SecondaryTier, queue: deque[tuple[SlotPool, Sequence[Key]]], n: int
    ) -> None:
        """Offer ``n`` entries in the order of the queue, or until a group has no room for pins."""
        while queue:
            pool, keys = queue[0]
            some = keys[: min(n, self._room(pool))]
            if not some:
                return
            queue.popleft()
            if len(keys) > len(some):
                queue.appendleft((pool, keys[len(some) :]))
            n -= len(some)
            self._spill(tier, pool, some)

    def _write_ahead(self, tier: SecondaryTier, pool: SlotPool) -> None:
        """Keep free slots and victims that are written, or on their way, ahead of evictions."""
        ahead = min(max(pool.capacity // AHEAD_SHARE, 1), MAX_AHEAD) - pool.free
        n = min(ahead - self._reading[tier, pool.spec.group_id], self._room(pool))
        if n > 0 and not self._spill(tier, pool, pool.next_victims(n).keys):
            self._declined[tier] = self._now() + DECLINED_REST_S

    def _room(self, pool: SlotPool) -> int:
        group_id = pool.spec.group_id
        return self._limit[group_id] - sum(self._reading[t, group_id] for t in self._jobs.tiers)

    def _spill(self, tier: SecondaryTier, pool: SlotPool, keys: Sequence[Key]) -> bool:
        """Start storing what is there, worth it, and missing in the tier; whether it takes it."""
        ready = pool.ready.known(keys)
        self.missed += len(keys) - len(ready)
        live = list(filterfalse(frozenset(pool.demoted(ready)).__contains__, ready))
        return all(
            self._store(tier, pool, batch)
            for batch in self._batches(tier, pool, tier.missing(live))
        )

    def _store(self, tier: SecondaryTier, pool: SlotPool, keys: list[Key]) -> bool:
        slots = self._primary.hold(keys)
        self._reading[tier, pool.spec.group_id] += len(keys)
        then = partial(self._spilled, self._era, tier, pool, keys)
        forks = self._forks(pool, keys)
        taken = self._jobs.store(tier, pool.spec.group_id, keys, slots, then, forks=forks)
        if not taken:
            self._release(tier, pool, keys)
        return taken

    def _forks(self, pool: SlotPool, keys: list[Key]) -> list[Key]:
        """The states from which several conversations are known to go on."""
        if pool.spec.kind is not GroupKind.STATE:
            return []
        nodes = ((key, self._primary.tree.get(key_hash(key))) for key in keys)
        return [key for key, node in nodes if node is not None and node.is_fork]

    def _batches(self, tier: SecondaryTier, pool: SlotPool, keys: list[Key]) -> Iterator[list[Key]]:
        size = max(1, BATCH_BYTES // tier.memory.record_bytes[pool.spec.group_id])
        for first in range(0, len(keys), size):
            yield keys[first : first + size]

    def _spilled(
        self, era: int, tier: SecondaryTier, pool: SlotPool, keys: list[Key], _: Done
    ) -> None:
        if era == self._era:
            self._release(tier, pool, keys)

    def _release(self, tier: SecondaryTier, pool: SlotPool, keys: list[Key]) -> None:
        self._reading[tier, pool.spec.group_id] -= len(keys)
        self._primary.unpin(keys, hit=False)

    def reset(self) -> None:
        """Every pin is gone; what waits is forgotten."""
        self._era += 1
        self._reading.clear()
        self._resting.clear()
        for queue in self._waiting.values():
            queue.clear()
