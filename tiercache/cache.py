# SPDX-License-Identifier: Apache-2.0
"""The engine-free public API: a cache of KV blocks over the tiers that are configured.

Covers what a serving engine, the replay and the tests drive. It decides and keeps the books; the
bytes are copied by whoever owns the memory.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from tiercache.admission import OfferCounter
from tiercache.blocks import BlockHash, GroupKind, GroupSpec, Key
from tiercache.events import Journal
from tiercache.observer import Observer
from tiercache.primary import PrimaryTier, Reservation
from tiercache.promotion import Restore
from tiercache.reasons import explain
from tiercache.requests import Request
from tiercache.restore import RestorePlan
from tiercache.slots import Presence, SlotCounts
from tiercache.tiering import Tiering
from tiercache.tiers.base import SecondaryTier


class TieredCache:
    """A tiered cache of KV blocks.

    A request is opened with its block hashes, planned and loaded, stored block by block, and
    finished:

    >>> from tiercache.blocks import GroupKind, GroupSpec, make_key
    >>> attention = GroupSpec(0, GroupKind.FULL, tokens_per_chunk=16, slot_bytes=4096)
    >>> recurrent = GroupSpec(1, GroupKind.STATE, tokens_per_chunk=16, slot_bytes=8192)
    >>> cache = TieredCache([attention, recurrent], {0: 8, 1: 2}, tokens_per_hash=16)
    >>> hashes = [bytes([i]) * 32 for i in range(4)]
    >>> blocks = [make_key(block_hash, 0) for block_hash in hashes[:3]]

    The first turn, a prompt of 50 tokens, stores three attention blocks and one state:

    >>> first = cache.open("turn 1", hashes[:3])
    >>> reservation = cache.reserve(first, [*blocks, make_key(hashes[2], 1)])
    >>> reservation.slots                       # numbered within each group
    [0, 1, 2, 0]
    >>> cache.commit(reservation.keys)          # the copies are done
    >>> cache.finish(first)

    The second turn, 70 tokens on the same prefix, resumes from that state:

    >>> second = cache.open("turn 2", hashes)
    >>> plan = cache.plan(second, limit=69)
    >>> plan.boundary
    48
    >>> needed = [*blocks, make_key(hashes[2], 1)]
    >>> cache.load(second, needed)
    [0, 1, 2, 0]
    >>> cache.release(needed)                   # the copies are done
    >>> cache.explain(second, plan)
    'restores 48 tokens up to 48: block of group 0 at 64 tokens was never stored'

    Args:
        groups: the groups that are cached.
        slots: slots of the primary tier per group id.
        tokens_per_hash: tokens that one block hash stands for.
        policy, demote, keep_blocks, demote_forks: see `tiercache.primary.PrimaryTier`.
        store_threshold, max_tracker_size: see `tiercache.admission.OfferCounter`.
        clock: seconds since the epoch, used to date evictions.

    Locking: none; the caller holds one lock across every plan and the load that follows it.
    """

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        slots: Mapping[int, int],
        *,
        tokens_per_hash: int,
        policy: str = "lru",
        demote: bool = True,
        keep_blocks: int = 3,
        demote_forks: bool = False,
        store_threshold: int = 0,
        max_tracker_size: int = 64_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.groups = {group.group_id: group for group in groups}
        self.primary = PrimaryTier(
            groups,
            slots,
            tokens_per_hash=tokens_per_hash,
            policy=policy,
            demote=demote,
            keep_blocks=keep_blocks,
            demote_forks=demote_forks,
            clock=clock,
        )
        self._offers = OfferCounter(store_threshold, max_tracker_size)
        self.tiering: Tiering | None = None
        """The secondary tiers, if there are any."""
        self.observer: Observer | None = None
        """Who is told of everything; see ``observe``."""

    def attach(
        self,
        tiers: Sequence[SecondaryTier],
        *,
        patience_s: float = 5.0,
        restore: Restore = "auto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Add secondary tiers, the fastest first, before the first request; see `Promoter`."""
        if tiers:
            self.tiering = Tiering(
                self.primary, tiers, clock, patience_s=patience_s, restore=restore
            )
            self.observe(self.observer)

    def observe(self, observer: Observer | None) -> None:
        """Tell ``observer`` of everything from now on, instead of the one before."""
        self.observer = observer
        if self.tiering is not None:
            self.tiering.jobs.observer = observer

    @property
    def journal(self) -> Journal:
        """Counters, listeners and the memory of what was evicted."""
        return self.primary.journal

    @property
    def is_hybrid(self) -> bool:
        """Whether some group can end a restore before the attention prefix ends."""
        return any(group.kind is not GroupKind.FULL for group in self.groups.values())

    @property
    def has_states(self) -> bool:
        """Whether a restore can only end at a checkpoint."""
        return any(group.kind is GroupKind.STATE for group in self.groups.values())

    def open(self, request_id: str, hashes: Sequence[BlockHash]) -> Request:
        """Begin a request. ``hashes`` may grow while it runs; it is not copied."""
        request = self.primary.open(request_id, hashes)
        if self.observer is not None:
            self.observer.opened(request)
        return request

    def plan(self, request: Request, *, limit: int, start: int = 0) -> RestorePlan:
        """How far the primary tier can restore the request beyond ``start``, at most to ``limit``.

        In tokens, as for ``restore``.
        """
        return self.primary.plan(request, start=start, limit=limit)

    def restore(self, request: Request, *, limit: int, start: int = 0) -> RestorePlan | None:
        """As ``plan``, after what secondary tiers have was brought to the primary one.

        None while that goes on: ask again after ``poll``. What the plan needs stays in the primary
        tier until it is loaded, the request is finished or the patience is over.
        """
        self.ask(request, limit=limit, start=start)
        plan: RestorePlan | None
        if self.tiering is None:
            plan = self.plan(request, limit=limit, start=start)
        else:
            plan = self.tiering.promoter.plan(request, limit=limit, start=start)
        if self.observer is not None:
            self.observer.planned(request, plan)
        return plan

    def ask(self, request: Request, *, limit: int, start: int = 0) -> None:
        """The engine finds out without a plan what it can restore. Only who observes needs it."""
        if self.observer is not None:
            self.observer.asked(request, start=start, limit=limit)

    def served(self, request: Request, tokens: int) -> None:
        """The engine goes on with ``tokens`` of the prompt restored. Only who observes needs it."""
        if self.observer is not None:
            self.observer.served(request, tokens)

    def poll(self) -> None:
        """Let the secondary tiers get on. To be called once per step of the engine."""
        if self.tiering is not None:
            self.tiering.poll()
        if self.observer is not None:
            self.observer.tick()

    @property
    def pending(self) -> bool:
        """Whether ``poll`` has something to wait for."""
        return self.tiering is not None and self.tiering.pending

    def is_loading(self, key: Key) -> bool:
        """Whether ``key`` is on its way from a secondary tier, which may fail."""
        return self.tiering is not None and self.tiering.promoter.is_loading(key)

    def explain(self, request: Request, plan: RestorePlan) -> str:
        """One sentence on what ``plan`` restores and what ended it."""
        sentence = explain(plan, request.lineage, self.groups, self.journal.fate)
        return f"{sentence}; {request.remark}" if request.remark else sentence

    def state(self, key: Key) -> Presence:
        """Whether ``key`` is missing, being written, or ready."""
        return self.primary.state(key)

    def reserve(self, request: Request, keys: Collection[Key]) -> Reservation | None:
        """Reserve slots for those of ``keys`` that have none and are admitted.

        None, and nothing changed, if one group has no room for all of its keys.
        """
        return self.primary.reserve(request, self._offers.admit(keys, self._is_known))

    def _is_known(self, key: Key) -> bool:
        return self.primary.state(key) is not Presence.MISSING

    def could_fit(self, request: Request) -> bool:
        """Whether what the request offered so far could all be there at once, room permitting."""
        pools = self.primary.pools
        return all(
            pools[group_id].spec.kind is not GroupKind.FULL or len(used) <= pools[group_id].capacity
            for group_id, used in request.used.items()
        )

    def commit(self, keys: Collection[Key]) -> None:
        """The blocks of ``keys`` are written: make them readable."""
        self.primary.commit(keys)
        self._changed()

    def fail(self, keys: Collection[Key]) -> None:
        """The blocks of ``keys`` could not be written: free their slots."""
        self.primary.fail(keys)
        self._changed()

    def _changed(self) -> None:
        if self.observer is not None:
            self.observer.changed()

    def load(self, request: Request, keys: Collection[Key]) -> list[int]:
        """Pin ready keys and return their slots. Raises KeyError if one is not ready."""
        if self.tiering is not None:
            self.tiering.promoter.forget(request)
        slots = self.primary.pin(request, keys)
        if self.observer is not None:
            self.observer.loading(request, keys)
        return slots

    def release(self, keys: Collection[Key], request: Request | None = None) -> None:
        """The load of ``keys``, by ``request`` if that is known, is over: unpin them."""
        if request is None:
            self.primary.unpin(keys)
        else:
            self.primary.release(request, keys)
        if self.observer is not None:
            self.observer.loaded(request)

    def finish(self, request: Request) -> None:
        """End a request: commit what it used as recent, demote what it superseded."""
        if self.tiering is not None:
            self.tiering.promoter.forget(request)
        self.primary.finish(request)
        if self.observer is not None:
            self.observer.finished(request)

    def reset(self) -> None:
        """Drop everything, in all tiers and for good; running requests go on from nothing.

        What is stored after it serves this process only: what changed, such as the weights, is in
        no name. A process that is killed before a tier has heard of it leaves what was there.
        """
        if self.tiering is None:
            self.primary.reset()
        else:
            self.tiering.reset()
        self._offers.clear()
        self._changed()

    def close(self) -> None:
        """Close the secondary tiers; what they have is there when they are opened again."""
        if self.observer is not None:
            self.observer.close()
        if self.tiering is not None:
            self.tiering.close()

    def counts(self) -> dict[int, SlotCounts]:
        """Slots of the primary tier by state, per group."""
        return self.primary.counts()

    def validate(self) -> None:
        """Check every invariant in O(slots); raises InvariantError."""
        self.primary.validate()
