# SPDX-License-Identifier: Apache-2.0
"""A cache over tiers that the test drives, and an engine that reads and writes tagged slots."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from tests.core_helpers import BLOCK, FULL, STATES, chain, checkpoint, full, keys, state
from tests.tier_helpers import Clock, ManualTier, Slots
from tiercache.blocks import BlockHash, GroupSpec, Key, by_group
from tiercache.cache import TieredCache
from tiercache.promotion import Promoter
from tiercache.requests import Request
from tiercache.restore import RestorePlan
from tiercache.slots import Presence
from tiercache.spilling import Spiller

HYBRID: Sequence[GroupSpec] = [full(FULL), *map(state, STATES)]
PATIENCE_S = 5.0


class Rig:
    """One cache, its slots' bytes and its tiers. ``spills`` has an entry for each tier."""

    def __init__(
        self,
        *,
        groups: Sequence[GroupSpec] = HYBRID,
        full_slots: int = 32,
        other_slots: int = 8,
        spills: Sequence[Any] = ("on_store",),
        **options: Any,
    ) -> None:
        self.groups = groups
        self.capacity = {group.group_id: other_slots for group in groups}
        self.capacity[FULL] = full_slots
        self.clock = Clock()
        self.slots = Slots(groups, self.capacity)
        self.tiers = [
            ManualTier(f"manual{i}", self.slots.memory, spill=spill)
            for i, spill in enumerate(spills)
        ]
        self.options = options
        self.restart()

    def restart(self) -> None:
        """Begin with an empty primary tier over the same secondary ones."""
        self.cache = TieredCache(
            self.groups, self.capacity, tokens_per_hash=BLOCK, clock=self.clock
        )
        options = {"patience_s": PATIENCE_S} | self.options
        self.cache.attach(self.tiers, clock=self.clock, **options)

    # --- the tiers

    @property
    def tier(self) -> ManualTier:
        return self.tiers[0]

    @property
    def promoter(self) -> Promoter:
        assert self.cache.tiering is not None
        return self.cache.tiering.promoter

    @property
    def spiller(self) -> Spiller:
        assert self.cache.tiering is not None
        return self.cache.tiering.spiller

    def stock(self, stocked: Iterable[Key], tier: ManualTier | None = None) -> None:
        """Have ``tier``, or the first one, hold these blocks."""
        (tier or self.tier).hold(stocked)

    @property
    def loading(self) -> list[Key]:
        return [key for tier in self.tiers for batch in tier.loads for key in batch.keys]

    @property
    def storing(self) -> list[Key]:
        return [key for tier in self.tiers for batch in tier.stores for key in batch.keys]

    def end(self, *job_ids: int, **failures: Any) -> None:
        """Have jobs of the first tier end, and the cache take note."""
        self.tier.end(*job_ids, **failures)
        self.cache.poll()

    def settle(self) -> None:
        """Let everything that can go on go on until it is over."""
        for _ in range(100):
            self.cache.poll()
            for tier in self.tiers:
                tier.end()
        self.cache.poll()
        assert not self.loading
        assert not self.storing

    def after(self, seconds: float) -> None:
        self.clock.now += seconds
        self.cache.poll()

    # --- the engine

    def open(self, hashes: Sequence[BlockHash], name: str = "") -> Request:
        return self.cache.open(name, hashes)

    def ask(self, request: Request, *, start: int = 0, blocks: int | None = None) -> int | None:
        """How many blocks the request can restore in all; None while it should ask again."""
        limit = len(request.lineage.hashes) if blocks is None else blocks
        plan = self.cache.restore(request, start=start * BLOCK, limit=limit * BLOCK)
        return None if plan is None else plan.boundary // BLOCK

    def wants(self, request: Request, **where: int) -> list[Key]:
        """What a request that has to wait has the tiers load."""
        assert self.ask(request, **where) is None
        self.cache.poll()
        return self.loading

    def reserve(self, request: Request, stored: Collection[Key]) -> list[Key]:
        """Have the engine write blocks; returns the keys of those that were new."""
        reservation = self.cache.reserve(request, stored)
        assert reservation is not None
        for key, slot in zip(reservation.keys, reservation.slots, strict=True):
            self.slots.write(key, slot)
        return reservation.keys

    def store(self, request: Request, stored: Collection[Key]) -> list[Key]:
        """As ``reserve``, and the blocks are written."""
        reserved = self.reserve(request, stored)
        self.cache.commit(reserved)
        return reserved

    def load(self, request: Request, *, start: int = 0) -> int:
        """Have the engine restore what it can get at once, and look at the bytes."""
        limit = len(request.lineage.hashes) * BLOCK
        plan = self.cache.restore(request, start=start * BLOCK, limit=limit)
        assert plan is not None
        loaded = self.needed(request, plan)
        slots = self.cache.load(request, loaded)
        in_order = [key for run in by_group(loaded).values() for key in run]
        assert all(map(self.slots.holds, in_order, slots))
        self.cache.release(set(loaded))
        return plan.boundary // BLOCK

    def needed(self, request: Request, plan: RestorePlan) -> list[Key]:
        needed = self.cache.primary.needed(request, plan)
        assert all(self.cache.state(key) is Presence.READY for key in needed)
        return needed

    def turn(self, hashes: Sequence[BlockHash], *states: int) -> None:
        """Play a request that restores nothing, and stores its blocks and these states."""
        request = self.open(hashes)
        self.store(request, keys(hashes, FULL))
        for blocks in states:
            self.store(request, checkpoint(hashes, blocks))
        self.cache.finish(request)

    # --- what is there

    def pending(self) -> bool:
        return self.cache.pending

    def waiting(self) -> bool:
        return self.promoter.pending

    @property
    def pins(self) -> int:
        return sum(pool.pins for pool in self.cache.primary.pools.values())

    def here(self, wanted: Iterable[Key]) -> list[bool]:
        return [self.cache.state(key) is Presence.READY for key in wanted]

    def check(self) -> None:
        """What is true at any time."""
        self.cache.validate()
        for pool in self.cache.primary.pools.values():
            assert all(map(self.slots.holds, pool.ready, pool.ready.values()))


def conversation(blocks: int, *states: int, name: str = "a") -> tuple[list[BlockHash], list[Key]]:
    """Hashes of a prompt, and the keys of its blocks and of its states after so many blocks."""
    hashes = chain(name, blocks)
    return hashes, [*keys(hashes, FULL), *(k for n in states for k in checkpoint(hashes, n))]
