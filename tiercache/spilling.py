# SPDX-License-Identifier: Apache-2.0
"""Copying entries of the primary tier into the secondary ones: what, and when.

Covers write-through of what was stored, write-ahead of what is about to be evicted, and the pins
meanwhile. Whether a tier takes an entry, and where to, is the tier's business.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tiercache.blocks import GroupKind, Key
from tiercache.events import Event, EventKind
from tiercache.jobs import Jobs
from tiercache.primary import PrimaryTier
from tiercache.requests import Request
from tiercache.slots import SlotPool
from tiercache.tiers.base import Done, SecondaryTier

#: Bytes of one job: long runs cross into the interpreter seldom.
BATCH_BYTES = 64 << 20
#: How far ahead of eviction an ``on_evict`` tier is kept: a share of the pool, and at most.
AHEAD_SHARE = 16
MAX_AHEAD = 1024
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
    pool is pinned on behalf of the tiers. ``clock``: seconds that only grow. Locking: none, as for
    the primary tier.
    """

    def __init__(self, primary: PrimaryTier, jobs: Jobs, clock: Callable[[], float]) -> None:
        self.missed = 0
        """Entries that were evicted while they waited."""
        self._primary = primary
        self._jobs = jobs
        self._now = clock
        self._on_store = [tier for tier in jobs.tiers if tier.spill == "on_store"]
        self._on_evict = [tier for tier in jobs.tiers if tier.spill == "on_evict"]
        self._waiting: dict[SecondaryTier, deque[tuple[SlotPool, Sequence[Key]]]] = {
            tier: deque() for tier in self._on_store
        }
        self._resting: list[Resting] = []
        self._reading = dict.fromkeys(primary.pools, 0)
        """Pins per group."""
        self._era = 0
        primary.journal.listeners.append(self._notice)

    @property
    def pending(self) -> bool:
        """Whether something waits or is being copied."""
        return any(self._reading.values()) or bool(self._resting) or any(self._waiting.values())

    def _notice(self, event: Event) -> None:
        if event.kind is EventKind.STORED and self._on_store:
            self._enqueue(self._primary.pools[event.group_id], list(event.keys))
        elif event.kind in (EventKind.DEMOTED, EventKind.STRANDED):
            for tier in self._jobs.tiers:
                tier.demote(event.keys)
        elif event.kind is EventKind.RESTORED:
            for tier in self._jobs.tiers:
                tier.touch(event.keys)

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
        """Start what can be started; ``hurry`` lets no state rest any longer."""
        now = self._now()
        rested = [r for r in self._resting if hurry or r.due <= now or r.writer.finished]
        if rested:
            self._resting = [r for r in self._resting if r not in rested]
        for _, pool, keys, _ in rested:
            self._wait(pool, keys)
        for tier, queue in self._waiting.items():
            self._feed(tier, queue)
        for tier in self._on_evict:
            for pool in self._primary.pools.values():
                self._write_ahead(tier, pool)

    def _feed(self, tier: SecondaryTier, queue: deque[tuple[SlotPool, Sequence[Key]]]) -> None:
        """Start jobs in the order of the queue until a group has no room for more pins."""
        while queue:
            pool, keys = queue[0]
            room = self._room(pool)
            if not room:
                return
            queue.popleft()
            if len(keys) > room:
                queue.appendleft((pool, keys[room:]))
            self._spill(tier, pool, keys[:room])

    def _write_ahead(self, tier: SecondaryTier, pool: SlotPool) -> None:
        ahead = min(max(pool.capacity // AHEAD_SHARE, 1), MAX_AHEAD, self._room(pool))
        if pool.counts().free < ahead:
            victims = pool.policy.peek(ahead)
            self._spill(tier, pool, victims.keys[victims.demoted :])

    def _room(self, pool: SlotPool) -> int:
        group_id = pool.spec.group_id
        return max(1, pool.capacity // 2) - self._reading[group_id]

    def _spill(self, tier: SecondaryTier, pool: SlotPool, keys: Sequence[Key]) -> None:
        """Start storing those keys that are there, worth it, and missing in the tier."""
        ready = list(filter(pool.ready.__contains__, keys))
        self.missed += len(keys) - len(ready)
        if pool.policy.demoted:
            ready = [key for key in ready if not pool.policy.is_demoted(key)]
        for batch in self._batches(tier, pool, tier.missing(ready)):
            slots = self._primary.hold(batch)
            self._reading[pool.spec.group_id] += len(batch)
            then = partial(self._spilled, self._era, pool, batch)
            if not self._jobs.store(tier, pool.spec.group_id, batch, slots, then):
                self._release(pool, batch)

    def _batches(self, tier: SecondaryTier, pool: SlotPool, keys: list[Key]) -> Iterator[list[Key]]:
        size = max(1, BATCH_BYTES // tier.memory.record_bytes[pool.spec.group_id])
        for first in range(0, len(keys), size):
            yield keys[first : first + size]

    def _spilled(self, era: int, pool: SlotPool, keys: list[Key], _: Done) -> None:
        if era == self._era:
            self._release(pool, keys)

    def _release(self, pool: SlotPool, keys: list[Key]) -> None:
        self._reading[pool.spec.group_id] -= len(keys)
        self._primary.unpin(keys)

    def reset(self) -> None:
        """Every pin is gone; what waits is forgotten."""
        self._era += 1
        self._reading = dict.fromkeys(self._reading, 0)
        self._resting.clear()
        for queue in self._waiting.values():
            queue.clear()
