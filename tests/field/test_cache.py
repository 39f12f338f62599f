# SPDX-License-Identifier: Apache-2.0
"""Faults that users of other caches met, tried on ours: sizing, waiting, books. No engine.

The numbers are those of ``docs/field-reports.md``, which says where each was reported.
"""

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.core_helpers import BLOCK, FULL, chain, checkpoint, full, keys, state, turn
from tests.tiering.rig import Rig, conversation
from tiercache.blocks import GroupKind, GroupSpec
from tiercache.cache import TieredCache
from tiercache.layout import plan_geometry
from tiercache.primary import PrimaryTier
from tiercache.slots import Presence, SlotCounts

MAIN = chain("a", 8)


@given(
    st.integers(1, 12),
    st.integers(1, 64).map(lambda pages: pages * 4096),
    st.integers(1, 64).map(lambda pages: pages * 4096),
    st.sampled_from([16, 256, 784, 1632]),
)
def test_c01_a_budget_is_used_by_all_groups(
    states: int, attention_bytes: int, state_bytes: int, tokens: int
) -> None:
    """However many state groups there are: no slot is wider than what its group fills."""
    groups = [GroupSpec(0, GroupKind.FULL, tokens, attention_bytes)]
    groups += [GroupSpec(1 + i, GroupKind.STATE, tokens, state_bytes) for i in range(states)]
    budget = 2000 * sum(group.slot_bytes for group in groups)
    geometry = plan_geometry(
        groups,
        budget_bytes=budget,
        retention=0,
        reference_tokens=64 * tokens,
        replay_boundaries=1,
        group_slots={},
    )
    used = sum(geometry.slots[group.group_id] * group.slot_bytes for group in groups)
    assert 0.97 * budget <= used <= budget
    widest = max(group.slot_bytes for group in groups)
    rows = budget // (widest * len(groups))
    assert geometry.slots[0] >= rows
    if states >= 4 and attention_bytes >= state_bytes:
        assert geometry.slots[0] >= 3 * rows


def test_c27_what_is_in_flight_when_its_request_ends_goes_to_the_disk_later() -> None:
    rig = Rig()
    hashes, stored = conversation(6, 6)
    request = rig.open(hashes)
    reserved = rig.reserve(request, stored)
    rig.cache.finish(request)
    rig.cache.poll()
    assert rig.storing == []
    rig.cache.commit(reserved)
    rig.settle()
    assert sorted(rig.tier.keys) == sorted(stored)
    rig.check()


@given(st.integers(0, 12 * BLOCK), st.integers(0, 12 * BLOCK))
def test_c33_an_engine_may_have_computed_more_than_is_hashed(start: int, limit: int) -> None:
    """What it has is not taken for a fault, and nothing is restored beyond the hashes."""
    groups = [full(FULL), state(1)]
    cache = TieredCache(groups, {FULL: 16, 1: 4}, tokens_per_hash=BLOCK)
    request = cache.open("", MAIN)
    reservation = cache.reserve(request, [*keys(MAIN, FULL), *keys(MAIN[7:], 1)])
    assert reservation
    cache.commit(reservation.keys)
    plan = cache.restore(request, start=start, limit=limit)
    assert plan is not None
    assert plan.boundary <= max(start, 8 * BLOCK)
    assert (plan.restored > 0) == (start < 8 * BLOCK <= limit)
    cache.finish(request)
    cache.validate()


def test_c37_a_prompt_that_needs_more_slots_than_there_are_is_computed() -> None:
    """One slot for attention, four blocks on disk: served as far as it fits, or not, but soon."""
    rig = Rig(groups=[full(FULL)], full_slots=1)
    hashes = chain("a", 4)
    rig.stock(keys(hashes, FULL))
    request = rig.open(hashes)
    asked = 0
    while rig.ask(request) is None:
        rig.settle()
        asked += 1
        assert asked < 5
    assert rig.load(request) <= 1
    rig.check()


def test_c42_ten_thousand_blocks_come_back_as_they_were_whatever_is_late() -> None:
    """Copies end in any order, with failures; every byte is looked at before it is served."""
    luck = random.Random(42)
    rig = Rig(full_slots=120, other_slots=12)
    talks = [conversation(24, 24, name=f"talk {number} ")[0] for number in range(12)]
    restored = 0
    for number in range(2000):
        hashes = luck.choice(talks)
        request = rig.open(hashes, str(number))
        while (blocks := rig.ask(request)) is None:
            for job_id in luck.sample(sorted(rig.tier.jobs), luck.randint(0, len(rig.tier.jobs))):
                rig.tier.end(job_id, failed=lambda _: luck.random() < 0.005)
            rig.after(luck.choice((0, 0, 0.3)))
        restored += rig.load(request) if blocks else 0
        rig.store(request, keys(hashes, FULL))
        rig.store(request, checkpoint(hashes, 24))
        rig.cache.finish(request)
        rig.after(0.01)
        if restored >= 10_000:
            break
    rig.settle()
    assert restored >= 10_000
    assert rig.pins == 0
    rig.check()


def test_c83_a_full_pool_is_full_of_what_can_be_served_not_of_pins() -> None:
    tier = PrimaryTier([full(FULL), state(1), state(2)], {FULL: 8, 1: 2, 2: 2}, tokens_per_hash=16)
    turn(tier, MAIN, 4, 8)
    assert tier.counts()[FULL] == SlotCounts(free=0, storing=0, live=8, demoted=0, pinned=0)
    request = tier.open("", MAIN)
    tier.pin(request, keys(MAIN[:3], FULL))
    assert tier.counts()[FULL] == SlotCounts(free=0, storing=0, live=5, demoted=0, pinned=3)
    tier.unpin(keys(MAIN[:3], FULL))
    assert all(tier.pools[FULL].state(key) is Presence.READY for key in keys(MAIN, FULL))
