# SPDX-License-Identifier: Apache-2.0
"""Random conversations over tiers that fail, hang and forget: nothing wrong is ever served.

The test plays the engine. Every slot that holds a key must hold the bytes of that key, as they
have been since the last reset, at any time and wherever they came from.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core_helpers import BLOCK, FULL, STATES, full, keys, state, window
from tests.tier_helpers import Clock, ManualTier, Slots, record
from tiercache.blocks import BlockHash, GroupSpec, Key, by_group, key_group
from tiercache.cache import TieredCache
from tiercache.policies import POLICIES
from tiercache.promotion import KEEP_S
from tiercache.requests import Request
from tiercache.slots import Presence
from tiercache.tiers.base import Batch
from tiercache.tiers.memory import MemoryTier

WINDOW, DRAFT = 3, 4
#: Groups and their slots: few enough for everything to be evicted again and again.
MODELS: dict[str, dict[GroupSpec, int]] = {
    "full attention": {full(FULL): 8},
    "hybrid": {full(FULL): 10, **dict.fromkeys(map(state, STATES), 4)},
    "windows": {full(FULL): 9, window(WINDOW, 2): 6, full(DRAFT, draft=True): 8},
    "hybrid, windows": {full(FULL): 9, state(STATES[0]): 3, window(WINDOW, 2): 5},
}
TIERS: dict[str, Sequence[str]] = {
    "memory": ["memory"],
    "eager": ["on_store"],
    "lazy": ["on_evict"],
    "two": ["on_evict", "on_store"],
    "memory, slow": ["memory", "on_store"],
}
PATIENCE_S = 5.0
#: A prompt is a word, its blocks are its letters: words that begin alike share blocks.
words = st.text("ab", min_size=1, max_size=8)
data = st.data()


def prefixes(word: str) -> list[BlockHash]:
    return [word[: i + 1].encode() for i in range(len(word))]


class Store(NamedTuple):
    """Blocks that the engine has written and not reported yet."""

    request: Request
    keys: list[Key]
    slots: list[int]


class Wait(NamedTuple):
    """When a request was first told to ask again, and last."""

    since: float
    asked: float


class Conversations(RuleBasedStateMachine):
    """Several requests at a time, over tiers whose jobs end in any order, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.epoch = 0
        """What blocks are worth, such as the weights, changes with each reset."""
        self.running: list[Request] = []
        self.waits: dict[Request, Wait] = {}
        self.stores: list[Store] = []
        self.loads: list[list[Key]] = []

    @initialize(
        model=st.sampled_from(sorted(MODELS)),
        tiers=st.sampled_from(sorted(TIERS)),
        policy=st.sampled_from(sorted(POLICIES)),
        room=st.sampled_from([2, 6, 20]),
        restore=st.sampled_from(["auto", "always"]),
        known=st.lists(words, min_size=1, max_size=3),
    )
    def begin(
        self, *, model: str, tiers: str, policy: str, room: int, restore: Any, known: list[str]
    ) -> None:
        groups, slots = list(MODELS[model]), {g.group_id: n for g, n in MODELS[model].items()}
        self.slots = Slots(groups, slots, workers=2)
        self.cache = TieredCache(
            groups, slots, tokens_per_hash=BLOCK, policy=policy, keep_blocks=1, clock=self.clock
        )
        self.tiers = [self.make_tier(kind, room) for kind in TIERS[tiers]]
        self.manual = [tier for tier in self.tiers if isinstance(tier, ManualTier)]
        self.known = list(known)
        for word in known:
            self.stock(word)
        self.cache.attach(self.tiers, patience_s=PATIENCE_S, restore=restore, clock=self.clock)
        assert self.cache.tiering is not None
        self.cache.tiering.promoter.compute_rate = 1.0  # only what takes hours does not pay

    def stock(self, word: str) -> None:
        """Have a tier hold all of a conversation, as after a restart."""
        tier, everything = self.tiers[-1], keys(prefixes(word), *self.cache.groups)
        for job_id, each in enumerate(tier.missing(everything)):
            self.slots.write(each, slot=0)
            assert tier.store(Batch(job_id, key_group(each), [each], [0]))
            if isinstance(tier, ManualTier):
                tier.end()
        tier.poll()

    def make_tier(self, kind: Any, room: int) -> MemoryTier:
        memory = self.slots.memory
        capacity = room * sum(memory.record_bytes.values())
        if kind == "memory":
            return MemoryTier(kind, memory, capacity=capacity)
        return ManualTier(kind, memory, capacity=capacity, spill=kind)

    # --- the engine

    @rule(word=words)
    def open(self, word: str) -> None:
        self.running.append(self.cache.open(word, prefixes(word)))

    @rule(word=words, states=st.sets(st.sampled_from(STATES)))
    def turn(self, word: str, states: set[int]) -> None:
        """A whole request that restores nothing."""
        self.known.append(word)
        request = self.cache.open(word, prefixes(word))
        self.write(request, self.wanted(request, len(word), {*STATES} - states))
        if self.stores and self.stores[-1].request is request:
            self.cache.commit(set(self.stores.pop().keys))
        self.cache.finish(request)

    @precondition(lambda self: self.running)
    @rule(data=data, blocks=st.integers(1, 8), groups=st.sets(st.sampled_from(STATES)))
    def reserve(self, data: st.DataObject, blocks: int, groups: set[int]) -> None:
        request = data.draw(st.sampled_from(self.running))
        self.write(request, self.wanted(request, blocks, groups))

    def wanted(self, request: Request, blocks: int, states: set[int]) -> list[Key]:
        """The first blocks of all groups, and the states of these at their end."""
        hashes, groups = request.lineage.hashes[:blocks], self.cache.groups.keys()
        return [*keys(hashes, *(groups - {*STATES})), *keys(hashes[-1:], *(groups & states))]

    def write(self, request: Request, wanted: list[Key]) -> None:
        reservation = self.cache.reserve(request, wanted)
        if reservation is not None:
            for each, slot in zip(reservation.keys, reservation.slots, strict=True):
                self.slots.write(each, slot, self.epoch)
            self.stores.append(Store(request, reservation.keys, reservation.slots))

    @precondition(lambda self: self.stores)
    @rule(data=data, failed=st.sampled_from([0, 0, 0, 1, 2, 9]))
    def report_store(self, data: st.DataObject, failed: int) -> None:
        store = self.stores.pop(data.draw(st.integers(0, len(self.stores) - 1)))
        for each, slot in zip(store.keys, store.slots, strict=True):
            assert self.slots.holds(each, slot, self.epoch)
        self.cache.fail(set(store.keys[:failed]))
        self.cache.commit(set(store.keys[failed:]))

    @precondition(lambda self: self.known)
    @rule(data=data, tail=st.text("ab", max_size=2))
    def come_back(self, data: st.DataObject, tail: str) -> None:
        self.open((data.draw(st.sampled_from(self.known)) + tail)[:8])
        self.restore(self.running[-1], 0)

    @precondition(lambda self: self.running)
    @rule(data=data, on_device=st.integers(0, 3))
    def ask(self, data: st.DataObject, on_device: int) -> None:
        self.restore(data.draw(st.sampled_from(self.running)), on_device)

    @precondition(lambda self: self.waits)
    @rule(data=data)
    def ask_again(self, data: st.DataObject) -> None:
        self.restore(data.draw(st.sampled_from(list(self.waits))), 0)

    def restore(self, request: Request, on_device: int) -> None:
        self.step(0.01)
        hashes = request.lineage.hashes
        start = min(on_device, len(hashes)) * BLOCK
        plan = self.cache.restore(request, start=start, limit=len(hashes) * BLOCK)
        if plan is None:
            self.has_patience(request)
            return
        self.waits.pop(request, None)
        needed = self.cache.primary.needed(request, plan)
        assert not any(map(self.cache.is_loading, needed))
        if plan.restored and not plan.pending:
            assert all(self.cache.state(each) is Presence.READY for each in needed)
            slots = self.cache.load(request, needed)
            in_order = [each for run in by_group(needed).values() for each in run]
            for each, slot in zip(in_order, slots, strict=True):
                assert self.slots.holds(each, slot, self.epoch)
            self.loads.append(needed)

    def has_patience(self, request: Request) -> None:
        """A request that asks all the time is told to wait for ``PATIENCE_S`` in all."""
        now = self.clock()
        since, asked = self.waits.get(request, Wait(now, now))
        if asked + KEEP_S < now:
            since = now
        self.waits[request] = Wait(since, now)
        assert now < since + PATIENCE_S

    @precondition(lambda self: self.loads)
    @rule(data=data)
    def report_load(self, data: st.DataObject) -> None:
        self.cache.release(set(self.loads.pop(data.draw(st.integers(0, len(self.loads) - 1)))))

    @precondition(lambda self: self.running)
    @rule(data=data)
    def finish(self, data: st.DataObject) -> None:
        request = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.waits.pop(request, None)
        self.cache.finish(request)

    @rule(dice=st.integers(1, 12))
    def reset(self, dice: int) -> None:
        if dice == 7:
            self.cache.reset()
            self.epoch += 1
            self.stores, self.loads, self.waits = [], [], {}

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.06, 1.0, 3.0, 6.0, 11.0]))
    def step(self, seconds: float) -> None:
        self.clock.now += seconds
        self.cache.poll()

    # --- the tiers

    @precondition(lambda self: any(tier.jobs for tier in self.manual))
    @rule(data=data, failed=st.sets(st.integers(0, 8), max_size=3), drop=st.booleans())
    def end_a_job(self, data: st.DataObject, failed: set[int], drop: bool) -> None:
        tier = data.draw(st.sampled_from([tier for tier in self.manual if tier.jobs]))
        job_id = data.draw(st.sampled_from(sorted(tier.jobs)))
        batch = tier.jobs[job_id].batch
        lost = {each for i, each in enumerate(batch.keys) if i in failed}
        tier.end(job_id, failed=lost.__contains__, drop=drop)

    @rule()
    def end_all_jobs(self) -> None:
        for tier in self.manual:
            tier.end()

    @precondition(lambda self: any(tier.keys for tier in self.manual))
    @rule(data=data)
    def forget(self, data: st.DataObject) -> None:
        tier = data.draw(st.sampled_from([tier for tier in self.manual if tier.keys]))
        tier.forget(data.draw(st.sets(st.sampled_from(tier.keys), max_size=4)))

    @precondition(lambda self: self.manual)
    @rule(data=data, healthy=st.sampled_from([True, True, False]), declines=st.booleans())
    def change_health(self, data: st.DataObject, healthy: bool, declines: bool) -> None:
        tier = data.draw(st.sampled_from(self.manual))
        tier.sicken(healthy=healthy)
        tier.declines = declines
        tier.rate = data.draw(st.sampled_from([None, 1e12, 1.0]))

    # --- what is always true

    @invariant()
    def is_valid(self) -> None:
        self.cache.validate()

    @invariant()
    def every_slot_holds_what_it_is_said_to(self) -> None:
        for pool in self.cache.primary.pools.values():
            for each, slot in pool.ready.items():
                assert self.slots.holds(each, slot, self.epoch)
        for tier in self.tiers:
            for each, stored in tier._records.items():
                assert stored == record(each, self.slots.memory, self.epoch)

    @invariant()
    def pins_are_those_of_loads_of_tiers_and_of_who_waits(self) -> None:
        assert self.cache.tiering is not None
        held = Counter(each for batch in self.loads for each in batch).total()
        held += self.cache.tiering.spiller._reading.total()
        held += sum(len(p.held) for p in self.cache.tiering.promoter._promotions.values())
        assert held == sum(pool.pins for pool in self.cache.primary.pools.values())

    def teardown(self) -> None:
        """Once everything is over, nothing is left in flight, pinned, waited for or remembered."""
        if not hasattr(self, "cache"):
            return
        for store in self.stores:
            self.cache.commit(store.keys)
        for batch in self.loads:
            self.cache.release(batch)
        for request in self.running:
            self.cache.finish(request)
        for tier in self.manual:
            tier.sicken(healthy=True)
        for _ in range(20):
            self.step(1.0)
            for tier in self.manual:
                tier.end()
        self.step(0.0)
        self.cache.validate()
        assert not self.cache.pending
        assert all(c.storing == c.pinned == 0 for c in self.cache.counts().values())
        assert not self.cache.primary._open
        assert self.cache.tiering is not None
        assert not self.cache.tiering.promoter._promotions
        assert not self.cache.tiering.promoter._loads
        self.cache.close()


TestConversations = Conversations.TestCase
TestConversations.settings = settings(max_examples=100, stateful_step_count=60)
