# SPDX-License-Identifier: Apache-2.0
"""Jobs at the secondary tiers: who is told when one ends.

Covers numbering and handing results back. What is copied is decided in ``spilling`` and
``promotion``; the tiers copy.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import filterfalse
from typing import NamedTuple

from tiercache.blocks import Key
from tiercache.observer import Observer
from tiercache.restore import Elsewhere
from tiercache.tiers.base import Batch, Done, SecondaryTier

#: Entries of which a step of the engine hears from tiers at most, as many for which it has them
#: load, and as many store: 5 to 10 microseconds each.
STEP_KEYS = 512

Then = Callable[[Done], None]


class Job(NamedTuple):
    """What a tier was given, and who is told when it ends."""

    batch: Batch
    loads: bool
    then: Then


class Jobs:
    """The jobs of all tiers. Locking: none, one thread calls."""

    def __init__(self, tiers: Sequence[SecondaryTier]) -> None:
        self.tiers = tiers
        self.has = self.elsewhere().has
        """Whether some tier has a key; asked for every block of a prompt."""
        self.observer: Observer | None = None
        self._running: dict[SecondaryTier, dict[int, Job]] = {tier: {} for tier in tiers}
        self._ended: deque[tuple[SecondaryTier, Done]] = deque()
        """Who started these jobs has not been told yet."""
        self._next = 0

    def running(self, tier: SecondaryTier) -> int:
        """How many jobs of ``tier`` have not ended, or not been polled since."""
        return len(self._running[tier])

    def store(
        self,
        tier: SecondaryTier,
        group_id: int,
        keys: list[Key],
        slots: list[int],
        then: Then,
        *,
        forks: Collection[Key] = (),
    ) -> bool:
        """Have ``tier`` store ready slots; False, and ``then`` is never called, if it declines."""
        batch = self._batch(group_id, keys, slots)._replace(forks=forks)
        if not tier.store(batch):
            return False
        self._running[tier][batch.job_id] = Job(batch, loads=False, then=then)
        return True

    def load(
        self, tier: SecondaryTier, group_id: int, keys: list[Key], slots: list[int], then: Then
    ) -> None:
        """Have ``tier`` load into slots that nobody reads; ``then`` is called in any case."""
        batch = self._batch(group_id, keys, slots)
        self._running[tier][batch.job_id] = Job(batch, loads=True, then=then)
        tier.load(batch)

    def _batch(self, group_id: int, keys: list[Key], slots: list[int]) -> Batch:
        self._next += 1
        return Batch(self._next, group_id, keys, slots)

    def poll(self) -> None:
        """Tell whoever started a job that it ended, of as many entries as a step has time for."""
        for tier in self.tiers:
            self._ended.extend((tier, done) for done in tier.poll())
        room = STEP_KEYS
        while self._ended and room > 0:
            tier, done = self._ended.popleft()
            job = self._running[tier].pop(done.job_id)
            room -= len(job.batch.keys)
            if self.observer is not None:
                self.observer.job(tier, job.batch, done, loads=job.loads)
            job.then(done)

    def elsewhere(self, barred: Collection[str] = ()) -> Elsewhere:
        """What the tiers have, other than those with the names ``barred``."""
        tiers = self._allowed(barred)
        if len(tiers) == 1:
            return Elsewhere(tiers[0].has, tiers[0].leading)

        def has(key: Key) -> bool:
            for tier in tiers:  # noqa: SIM110 - any() takes three times as long
                if tier.has(key):
                    return True
            return False

        def leading(keys: list[Key], at: int) -> int:
            reach = at
            while more := max((tier.leading(keys, reach) for tier in tiers), default=0):
                reach += more
            return reach - at

        return Elsewhere(has, leading)

    def seekers(self, barred: Collection[str] = ()) -> list[SecondaryTier]:
        """Tiers that may have more than they know of, but those with the names ``barred``."""
        return [tier for tier in self._allowed(barred) if tier.seeks]

    def _allowed(self, barred: Collection[str]) -> list[SecondaryTier]:
        return [tier for tier in self.tiers if tier.name not in barred]

    def sources(
        self, keys: Collection[Key], barred: Collection[str] = ()
    ) -> dict[SecondaryTier, list[Key]]:
        """The first tier that has it for each key that some tier has; none of those ``barred``."""
        found: dict[SecondaryTier, list[Key]] = {}
        left = dict.fromkeys(keys)
        for tier in self._allowed(barred):
            here = tier.held(list(left))
            if here:
                found[tier] = here
                left = dict.fromkeys(filterfalse(frozenset(here).__contains__, left))
        return found
