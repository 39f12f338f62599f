# SPDX-License-Identifier: Apache-2.0
"""Bringing what a request can resume from out of secondary tiers into the primary one.

Covers which entries are worth it, how long a request waits, and the pins meanwhile. A request is
served from the primary tier only: what cannot be brought there in time, or does not verify, is
missing before the engine has been told of it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from tiercache.blocks import GroupKind, Key, by_group
from tiercache.events import EventKind
from tiercache.jobs import Jobs
from tiercache.primary import PrimaryTier
from tiercache.requests import Request
from tiercache.restore import RestorePlan
from tiercache.slots import Presence
from tiercache.tiers.base import Done

Restore = Literal["auto", "always"]

#: How often a request tries again after something it needed could not be read.
MAX_ATTEMPTS = 3
#: Seconds between two attempts to find room; looking at 30,000 keys takes 10 ms of every step.
ROOM_RETRY_S = 0.05


@dataclass(eq=False, slots=True)
class Promotion:
    """What is being done for one request."""

    request: Request
    boundary: int
    """Tokens that it will be able to restore."""
    needed: list[Key]
    deadline: float
    """Until then the request waits, or what it waited for is kept for it."""
    attempts: int = 1
    retry_at: float | None = 0.0
    """When to look for room again; None once there was some."""
    loads: int = 0
    """Jobs that have not ended."""
    held: list[Key] = field(default_factory=list)
    """Pinned until the request loads them."""

    @property
    def running(self) -> bool:
        return self.retry_at is not None or self.loads > 0


@dataclass(eq=False, slots=True)
class Load:
    """One job of a tier: ``keys[i]`` into ``slots[i]``, and who waits for it."""

    group_id: int
    keys: list[Key]
    slots: list[int]
    promotions: list[Promotion]


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
        promotion = self._promotions.get(request)
        if promotion is not None and promotion.running:
            if self._goes_on(promotion):
                return None
            if promotion.running:
                self.late += 1
                self._let_go(promotion)
        plan = self._primary.plan(request, start=start, limit=limit, without=self._loads)
        promoted = self._may_try(promotion, plan) and self._promote(request, plan, limit)
        return None if promoted else plan

    def _goes_on(self, promotion: Promotion) -> bool:
        """Look for room if it is time to; whether the request should wait any longer."""
        now = self._now()
        if promotion.retry_at is not None and promotion.retry_at <= now:
            self._start(promotion)
        return promotion.running and now < promotion.deadline

    def _may_try(self, promotion: Promotion | None, plan: RestorePlan) -> bool:
        return promotion is None or (
            plan.boundary < promotion.boundary
            and promotion.attempts < MAX_ATTEMPTS
            and self._now() < promotion.deadline
        )

    def _promote(self, request: Request, plan: RestorePlan, limit: int) -> bool:
        """Begin a promotion if the tiers can serve more than ``plan``; whether one runs now."""
        limit = min(limit, plan.start + self._capacity())
        deeper = self._primary.plan(request, start=plan.start, limit=limit, elsewhere=self._has)
        if deeper.boundary <= plan.boundary:
            return False
        needed = self._primary.needed(request, deeper)
        if not self._is_worth_it(deeper.boundary - plan.boundary, needed):
            self.unworthy += 1
            return False
        promotion = Promotion(request, deeper.boundary, needed, self._now() + self._patience_s)
        before = self._promotions.get(request)
        if before is not None:
            self._let_go(before)
            promotion.attempts, promotion.deadline = before.attempts + 1, before.deadline
        self._promotions[request] = promotion
        self._start(promotion)
        return promotion.running

    def _has(self, key: Key) -> bool:
        return key in self._loads or self._jobs.has(key)

    def _capacity(self) -> int:
        """Tokens whose attention blocks fit into the primary tier at once."""
        pools = self._primary.pools.values()
        fulls = (pool for pool in pools if pool.spec.kind is GroupKind.FULL)
        return min((pool.capacity * pool.spec.tokens_per_chunk for pool in fulls), default=1 << 62)

    def _is_worth_it(self, tokens: int, needed: Collection[Key]) -> bool:
        if self._restore == "always" or not self.compute_rate:
            return True
        seconds = 0.0
        for tier, keys in self._jobs.sources(self._absent(needed)).items():
            sizes = tier.memory.record_bytes
            nbytes = sum(sizes[group] * len(run) for group, run in by_group(keys).items())
            seconds += nbytes / tier.load_rate if tier.load_rate else 0.0
        return seconds < tokens / self.compute_rate

    def _absent(self, keys: Collection[Key]) -> list[Key]:
        """Those that have no slot here."""
        return [key for key in keys if self._primary.state(key) is Presence.MISSING]

    # --- one promotion

    def _start(self, promotion: Promotion) -> None:
        """Pin what is here and start to load the rest, if there is room for it."""
        absent = self._absent(promotion.needed)
        sources = self._jobs.sources(absent)
        if sum(map(len, sources.values())) < len(absent):
            promotion.retry_at = None  # something is gone since it was planned
            return
        state = self._primary.state
        here = [key for key in promotion.needed if state(key) is Presence.READY]
        self._primary.hold(here)
        reservation = self._primary.reserve(promotion.request, absent)
        if reservation is None:
            self._primary.unpin(here)
            promotion.retry_at = self._now() + ROOM_RETRY_S
            return
        promotion.retry_at = None
        promotion.held = here
        for load in {load: None for key in promotion.needed if (load := self._loads.get(key))}:
            load.promotions.append(promotion)
            promotion.loads += 1
        slots = dict(zip(reservation.keys, reservation.slots, strict=True))
        for tier, keys in sources.items():
            for group_id, run in by_group(keys).items():
                load = Load(group_id, run, [slots[key] for key in run], [promotion])
                promotion.loads += 1
                self._loads.update(dict.fromkeys(run, load))
                self._jobs.load(tier, group_id, run, load.slots, partial(self._loaded, load))

    def _loaded(self, load: Load, done: Done) -> None:
        if self._loads.get(load.keys[0]) is not load:  # there was a reset
            self._primary.pools[load.group_id].give_back(load.slots)
            return
        for key in load.keys:
            del self._loads[key]
        failed = frozenset(done.failed)
        good = [key for key in load.keys if key not in failed]
        self._primary.fail(list(failed))
        self._primary.commit(good, EventKind.PROMOTED)
        for promotion in load.promotions:
            promotion.loads -= 1
            promotion.deadline = max(promotion.deadline, self._now() + self._patience_s)
            promotion.held += good
            promotion.request.promoted.update(good)
            self._primary.hold(good)

    def _let_go(self, promotion: Promotion) -> None:
        """Neither wait for nor keep anything for the request any more; loads go on."""
        for load in set(map(self._loads.get, promotion.needed)) - {None}:
            if load is not None and promotion in load.promotions:
                load.promotions.remove(promotion)
        self._primary.unpin(promotion.held)
        promotion.held = []
        promotion.loads = 0
        promotion.retry_at = None

    def expire(self) -> None:
        """Let go of what requests have not come back for."""
        now = self._now()
        for promotion in self._promotions.values():
            if promotion.held and not promotion.running and promotion.deadline < now:
                self._let_go(promotion)

    def forget(self, request: Request) -> None:
        """The request has loaded what it waited for, or ended."""
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
