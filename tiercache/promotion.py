# SPDX-License-Identifier: Apache-2.0
"""Bringing what a request can resume from out of secondary tiers into the primary one.

Covers which entries are worth it, how long a request waits, and the pins meanwhile. A request is
served from the primary tier only: what cannot be brought there in time, or does not verify, is
missing before the engine has been told of it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, filterfalse
from math import inf
from typing import Literal

from tiercache.blocks import GroupKind, Key, by_group
from tiercache.events import EventKind
from tiercache.jobs import STEP_KEYS, Jobs
from tiercache.primary import PrimaryTier
from tiercache.requests import Request
from tiercache.restore import RestorePlan
from tiercache.tiers.base import Done, SecondaryTier

Restore = Literal["auto", "always"]

#: How often it is looked what could be brought for a request, the first time included.
MAX_ATTEMPTS = 3
#: Seconds between two attempts to find room.
ROOM_RETRY_S = 0.05
#: Seconds that is kept what was brought for a request that does not ask any more. One that waits
#: asks at every step of the engine, unless as many run as may.
KEEP_S = 10.0
#: Keys of a group whose tiers are asked for, to estimate how long all of them take to read.
SAMPLE = 256


@dataclass(eq=False, slots=True)
class Promotion:
    """What is being done for one request, or was decided not to be done."""

    request: Request
    asked: float
    """When the request last asked."""
    deadline: float = inf
    """How long it waits, once it does."""
    boundary: int = 0
    """Tokens that it can restore, or will be able to."""
    attempts: int = 0
    seeks: list[Callable[[], bool]] | None = None
    """What is still being looked for in tiers that others store into; None before it is."""
    aim: RestorePlan | None = None
    """What is to be brought, as long as it was not looked at more closely."""
    gain: int = 0
    """Tokens that need not be computed then."""
    todo: list[Key] = field(default_factory=list)
    """What has neither been found here nor begun to be loaded."""
    retry_at: float = -inf
    """When to look for room again."""
    loads: set["Load"] = field(default_factory=set)
    """Loads that have not ended."""
    held: dict[Key, None] = field(default_factory=dict)
    """Pinned until the request loads them."""

    @property
    def running(self) -> bool:
        return bool(self.seeks or self.aim or self.todo or self.loads)


@dataclass(eq=False, slots=True)
class Load:
    """One job of a tier: ``keys[i]`` into ``slots[i]``, and who waits for it."""

    tier: str
    group_id: int
    keys: list[Key]
    slots: list[int]
    promotions: set[Promotion]


class Promoter:
    """Promotes for requests that look up what they can restore.

    Args:
        primary, jobs: where to, and from where.
        clock: seconds that only grow.
        patience_s: seconds that a request waits before what is missing is recomputed.
        restore: ``auto`` leaves alone what takes longer to read than to compute.

    Locking: none, as for the primary tier.
    """

    def __init__(
        self,
        primary: PrimaryTier,
        jobs: Jobs,
        clock: Callable[[], float],
        *,
        patience_s: float,
        restore: Restore,
    ) -> None:
        self.compute_rate: float | None = None
        """Tokens per second that the engine prefills; None as long as it is unknown."""
        self.late = 0
        """Requests that waited in vain."""
        self.unworthy = 0
        """Requests that were left to compute what could be read, as that is faster."""
        self._primary = primary
        self._jobs = jobs
        self._patience_s = patience_s
        self._restore = restore
        self._promotions: dict[Request, Promotion] = {}
        self._loads: dict[Key, Load] = {}
        """Keys that a tier is loading."""
        self._now = clock

    @property
    def pending(self) -> bool:
        """Whether some request waits."""
        return any(promotion.running for promotion in self._promotions.values())

    def is_loading(self, key: Key) -> bool:
        return key in self._loads

    def plan(self, request: Request, *, start: int, limit: int) -> RestorePlan | None:
        """What the request can get from the primary tier; None while it should ask again."""
        now = self._now()
        promotion = self._promotions.setdefault(request, Promotion(request, now))
        promotion.asked = now
        self._seek(promotion, start, limit, now)
        if promotion.running and now < promotion.deadline:
            return None
        if promotion.running:
            self.late += 1
            request.remark = f"a secondary tier did not deliver within {self._patience_s:g} s"
            self._let_go(promotion)
        plan = self._primary.plan(request, start=start, limit=limit, without=self._loads)
        if self._may_try(promotion, plan, now):
            self._consider(promotion, plan, limit)
        return None if promotion.running else plan

    def _seek(self, promotion: Promotion, start: int, limit: int, now: float) -> None:
        """Ask tiers that others store into what they have of the prompt, and hear what they say.

        What they say at one step is used at the next one: the request's patience begins here.
        """
        if promotion.seeks is None:
            tiers = self._jobs.seekers(promotion.request.barred)
            keys = self._absent(promotion.request, start, limit) if tiers else []
            begun = [tier.seek(keys) for tier in tiers if keys]
            promotion.seeks = [waits for waits in begun if waits is not None]
            if promotion.seeks:
                promotion.deadline = now + self._patience_s
        if promotion.seeks:
            promotion.seeks = [waits for waits in promotion.seeks if waits()]

    def _absent(self, request: Request, start: int, limit: int) -> list[Key]:
        """What the primary tier lacks of a prompt, group by group."""
        limit = min(limit, self.farthest(start))
        absent: list[Key] = []
        for group_id, pool in self._primary.pools.items():
            step = pool.spec.tokens_per_chunk
            ends = range(start - start % step + step, limit + pool.spec.lookahead + 1, step)
            absent += pool.missing(request.lineage.keys(group_id, ends))
        return absent

    def _may_try(self, promotion: Promotion, plan: RestorePlan, now: float) -> bool:
        """The first time, and if what it counted on did not come, or is gone."""
        return now < promotion.deadline and (
            not promotion.attempts
            or (plan.boundary < promotion.boundary and promotion.attempts < MAX_ATTEMPTS)
        )

    def _consider(self, promotion: Promotion, plan: RestorePlan, limit: int) -> None:
        """Begin to promote if the tiers can serve more than ``plan``."""
        promotion.attempts += 1
        promotion.boundary = plan.boundary
        limit = min(limit, self.farthest(plan.start))
        if plan.boundary >= limit - limit % self._primary.tokens_per_hash:
            return
        deeper = self._primary.plan(
            promotion.request,
            start=plan.boundary,
            limit=limit,
            elsewhere=self._jobs.elsewhere(promotion.request.barred),
        )
        if not deeper.restored:
            return
        promotion.aim = replace(deeper, start=plan.start)
        promotion.gain = deeper.restored
        promotion.boundary = deeper.boundary
        promotion.deadline = min(promotion.deadline, self._now() + self._patience_s)

    def farthest(self, start: int) -> int:
        """Tokens up to which the attention blocks from ``start`` on fit here at once."""
        fulls = (p for p in self._primary.pools.values() if p.spec.kind is GroupKind.FULL)
        steps = ((pool.capacity, pool.spec.tokens_per_chunk, pool.spec.lookahead) for pool in fulls)
        ends = (start - start % step + slots * step - beyond for slots, step, beyond in steps)
        return min(ends, default=1 << 62)

    def _prepare(self, promotion: Promotion) -> int:
        """Find out what is to be brought, and whether to; returns how many keys were looked at."""
        assert promotion.aim is not None
        pools, needed = self._primary.pools, self._primary.needed(promotion.request, promotion.aim)
        grouped = by_group(needed)
        absent = {group_id: pools[group_id].missing(keys) for group_id, keys in grouped.items()}
        promotion.aim = None
        if any(len(keys) > pools[group_id].capacity for group_id, keys in grouped.items()):
            promotion.boundary = 0
        elif not self._is_worth_it(promotion, absent):
            promotion.boundary = 0
            promotion.request.remark = "to read more would take longer than to compute it"
            self.unworthy += 1
        else:
            promotion.todo = _last(list(chain.from_iterable(absent.values())), needed)
        return len(needed)

    def _is_worth_it(self, promotion: Promotion, absent: dict[int, list[Key]]) -> bool:
        if self._restore == "always" or not self.compute_rate:
            return True
        barred = promotion.request.barred
        seconds = sum(self._seconds(*group, barred) for group in absent.items())
        return seconds < promotion.gain / self.compute_rate

    def _seconds(self, group_id: int, keys: list[Key], barred: Collection[str]) -> float:
        """About how long it takes to read ``keys``."""
        sample = keys[:: len(keys) // SAMPLE + 1]
        seconds = 0.0
        for tier, run in self._jobs.sources(sample, barred).items():
            nbytes = tier.memory.record_bytes[group_id] * len(keys) * len(run) / len(sample)
            seconds += nbytes / tier.load_rate if tier.load_rate else 0.0
        return seconds

    # --- one promotion

    def pump(self) -> None:
        """Go on with what requests wait for, and let go of what they have not come back for.

        One after the other: two that have each taken half of the slots would wait in vain.
        """
        now = self._now()
        for request, promotion in list(self._promotions.items()):
            if promotion.asked + KEEP_S < now:
                self.forget(request)
        room = STEP_KEYS
        for promotion in self._promotions.values():
            if promotion.deadline <= now:
                continue  # it has waited long enough, and will be told so
            if promotion.aim is not None and room > 0:
                room -= self._prepare(promotion)
            if promotion.todo and room > 0 and promotion.retry_at <= now:
                room -= self._advance(promotion, room)
            if promotion.todo:
                return

    def _advance(self, promotion: Promotion, n: int) -> int:
        """Pin what is here of the next ``n`` keys and begin to load the rest.

        Returns how many keys that were: none if there is no room for them.
        """
        keys = promotion.todo[:n]
        grouped = [(self._primary.pools[g], run) for g, run in by_group(keys).items()]
        missing = [(pool, pool.missing(run)) for pool, run in grouped]
        absent = list(chain.from_iterable(run for _, run in missing))
        sources = self._jobs.sources(absent, promotion.request.barred)
        if sum(map(len, sources.values())) < len(absent):
            promotion.todo = []  # something is gone since it was planned: the request asks again
            return len(keys)
        for pool, run in grouped:
            self._hold(promotion, pool.ready.known(run))
        if not all(pool.fits(len(run)) for pool, run in missing):
            promotion.retry_at = self._now() + ROOM_RETRY_S
            return 0
        promotion.todo = promotion.todo[n:]
        for load in filter(None, map(self._loads.get, keys)):
            load.promotions.add(promotion)
            promotion.loads.add(load)
        if absent:
            self._load(promotion, absent, sources)
        return len(keys)

    def _load(
        self, promotion: Promotion, absent: list[Key], sources: dict[SecondaryTier, list[Key]]
    ) -> None:
        # On behalf of a request of its own: the one that waits can end, a tier may never answer.
        request = promotion.request
        carrier = self._primary.open(request.request_id, request.lineage.hashes)
        reservation = self._primary.reserve(carrier, absent)
        assert reservation is not None
        self._primary.finish(carrier)
        slots = dict(zip(reservation.keys, reservation.slots, strict=True))
        for tier, keys in sources.items():
            for group_id, run in by_group(keys).items():
                load = Load(tier.name, group_id, run, [slots[key] for key in run], {promotion})
                promotion.loads.add(load)
                self._loads.update(dict.fromkeys(run, load))
                self._jobs.load(tier, group_id, run, load.slots, partial(self._loaded, load))

    def _loaded(self, load: Load, done: Done) -> None:
        if self._loads.get(load.keys[0]) is not load:  # there was a reset
            self._primary.pools[load.group_id].give_back(load.slots)
            return
        for key in load.keys:
            del self._loads[key]
        failed = frozenset(done.failed)
        good = list(filterfalse(failed.__contains__, load.keys))
        bad = list(filter(failed.__contains__, load.keys))
        self._primary.fail(bad)
        self._primary.journal.note_unreadable(bad, load.tier)
        self._primary.commit(good, EventKind.PROMOTED)
        for promotion in load.promotions:
            promotion.loads.discard(load)
            promotion.request.promoted.update(dict.fromkeys(good, load.tier))
            self._hold(promotion, good)

    def _hold(self, promotion: Promotion, keys: list[Key]) -> None:
        new = list(filterfalse(promotion.held.__contains__, keys))
        self._primary.hold(new)
        promotion.held.update(dict.fromkeys(new))

    def _let_go(self, promotion: Promotion) -> None:
        """Neither wait for nor keep anything for the request any more; loads go on."""
        for load in promotion.loads:
            load.promotions.discard(promotion)
        promotion.loads.clear()
        promotion.seeks, promotion.aim, promotion.todo = [], None, []
        self._primary.unpin(promotion.held, hit=False)
        promotion.held = {}

    def forget(self, request: Request) -> None:
        """The request loads what it waited for, or has ended."""
        promotion = self._promotions.pop(request, None)
        if promotion is not None:
            self._let_go(promotion)

    def reset(self) -> dict[int, list[int]]:
        """Forget every promotion, pins included; returns the slots that tiers still write to."""
        foreign: dict[int, list[int]] = {}
        for load in set(self._loads.values()):
            foreign.setdefault(load.group_id, []).extend(load.slots)
        self._loads.clear()
        self._promotions.clear()
        return foreign


def _last(some: list[Key], keys: list[Key]) -> list[Key]:
    """All ``keys``, ``some`` of them behind the others."""
    behind = frozenset(some)
    return [*filterfalse(behind.__contains__, keys), *some]
