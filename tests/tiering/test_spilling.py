# SPDX-License-Identifier: Apache-2.0
"""What is copied into secondary tiers, when, and how many slots that keeps busy."""

import pytest

from tests.core_helpers import FULL, checkpoint, full, is_demoted, keys
from tests.tiering.conftest import MakeRig
from tests.tiering.rig import Rig, conversation
from tiercache import spilling
from tiercache.spilling import DECLINED_REST_S, STATE_REST_S

# --- what, and when


def test_what_is_stored_is_written_through(rig: Rig) -> None:
    hashes, stored = conversation(6, 6)
    rig.turn(hashes, 6)
    assert rig.storing == []
    rig.cache.poll()
    assert sorted(rig.storing) == sorted(stored)
    rig.settle()
    assert sorted(rig.tier.keys) == sorted(stored)
    assert rig.pins == 0


def test_the_bytes_are_those_of_the_slots(rig: Rig) -> None:
    hashes, _ = conversation(6, 6)
    rig.turn(hashes, 6)
    rig.settle()
    rig.restart()
    request = rig.open(hashes)
    rig.wants(request)
    rig.end()
    assert rig.load(request) == 6


def test_what_is_not_ready_is_not_offered(rig: Rig) -> None:
    hashes, _ = conversation(6)
    request = rig.open(hashes)
    reserved = rig.reserve(request, keys(hashes, FULL))
    rig.cache.poll()
    assert rig.storing == []
    rig.cache.commit(reserved[:2])
    rig.cache.fail(reserved[2:])
    rig.cache.poll()
    assert rig.storing == keys(hashes[:2], FULL)


def test_what_the_tier_has_is_not_stored_again(rig: Rig) -> None:
    hashes, stored = conversation(6, 6)
    rig.stock(stored[:4])
    rig.turn(hashes, 6)
    rig.settle()
    assert sorted(k for batch in rig.tier.offered for k in batch.keys) == sorted(stored[4:])


def test_what_was_evicted_before_its_turn_is_missed(rig: Rig) -> None:
    hashes, stored = conversation(20)
    rig.turn(hashes)
    other, _ = conversation(32, name="other")
    rig.turn(other)
    rig.settle()
    assert not any(map(rig.tier.has, stored))
    assert rig.spiller.missed == 20
    assert sorted(rig.tier.keys) == sorted(keys(other, FULL))


def test_a_state_rests_while_its_request_goes_on(rig: Rig) -> None:
    hashes, _ = conversation(6)
    request = rig.open(hashes)
    rig.store(request, checkpoint(hashes, 6))
    rig.after(STATE_REST_S - 0.001)
    assert rig.storing == []
    rig.after(0.001)
    assert rig.storing == checkpoint(hashes, 6)


def test_a_state_rests_no_longer_than_its_request_lasts(rig: Rig) -> None:
    hashes, _ = conversation(3)
    others, _ = conversation(6, name="other")
    first, second = rig.open(hashes), rig.open(others)
    rig.store(first, checkpoint(hashes, 3))
    rig.store(second, checkpoint(others, 6))
    rig.cache.finish(first)
    rig.cache.poll()
    assert rig.storing == checkpoint(hashes, 3)


def test_a_state_that_is_superseded_while_it_rests_is_not_stored(rig: Rig) -> None:
    hashes, _ = conversation(12)
    request = rig.open(hashes)
    for blocks in (3, 6, 12):
        rig.store(request, checkpoint(hashes, blocks))
        rig.after(STATE_REST_S / 2)
    rig.after(STATE_REST_S)
    assert sorted(rig.storing) == sorted(checkpoint(hashes, 12))
    assert all(is_demoted(rig.cache.primary, checkpoint(hashes, 3) + checkpoint(hashes, 6)))


def test_a_state_that_was_superseded_is_stored_once_it_is_used(rig: Rig) -> None:
    """Another conversation goes on from it."""
    hashes, _ = conversation(12)
    rig.turn(hashes, 3, 12)
    rig.settle()
    assert not any(map(rig.tier.has, checkpoint(hashes, 3)))
    branch = rig.open([*hashes[:3], *conversation(6, name="branch")[0]])
    assert rig.load(branch) == 3
    rig.settle()
    assert all(map(rig.tier.has, checkpoint(hashes, 3)))


def test_what_is_demoted_meanwhile_is_not_stored(rig: Rig) -> None:
    hashes, _ = conversation(6)
    rig.turn(hashes)
    rig.cache.primary.pools[FULL].demote(keys(hashes[2:4], FULL))
    rig.cache.poll()
    assert rig.storing == keys(hashes[:2] + hashes[4:], FULL)


def test_what_was_promoted_is_not_stored_again(rig: Rig) -> None:
    hashes, stocked = conversation(6, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    rig.wants(request)
    rig.end()
    assert rig.load(request) == 6
    rig.cache.finish(request)
    rig.settle()
    assert rig.tier.offered == []


def test_the_tiers_learn_what_is_superseded_and_what_is_used(rig: Rig) -> None:
    hashes, _ = conversation(12, 3)
    rig.turn(hashes[:6], 3)
    rig.settle()
    rig.turn(hashes, 12)
    rig.settle()
    assert sorted(rig.tier.keys[:2]) == sorted(checkpoint(hashes, 3))
    assert rig.load(rig.open(hashes)) == 12
    assert set(rig.tier.touched) == {*keys(hashes, FULL), *checkpoint(hashes, 12)}


# --- how much at a time


def test_at_most_half_of_a_pool_is_pinned(rig: Rig) -> None:
    hashes, stored = conversation(32)
    rig.turn(hashes)
    rig.cache.poll()
    assert (len(rig.storing), rig.pins) == (16, 16)
    rig.cache.poll()
    assert rig.pins == 16
    rig.end()
    assert (len(rig.storing), rig.pins) == (16, 16)
    assert rig.cache.reserve(rig.open(hashes), keys(conversation(16, name="o")[0], FULL))
    rig.end()
    assert rig.pins == 0
    assert sorted(rig.tier.keys) == sorted(stored)


def test_several_tiers_share_half_of_a_pool(make_rig: MakeRig) -> None:
    rig = make_rig(spills=["on_store", "on_store"])
    hashes, stored = conversation(24)
    rig.turn(hashes)
    rig.cache.poll()
    assert rig.pins == 16
    rig.tiers[0].end()
    rig.cache.poll()
    assert rig.pins == 16
    rig.settle()
    assert rig.pins == 0
    for tier in rig.tiers:
        assert sorted(tier.keys) == sorted(stored)


def test_a_pool_of_one_slot_is_written_through(make_rig: MakeRig) -> None:
    rig = make_rig(full_slots=1, other_slots=1)
    hashes, stored = conversation(1, 1)
    rig.turn(hashes, 1)
    rig.settle()
    assert sorted(rig.tier.keys) == sorted(stored)


def test_bytes_on_their_way_are_limited(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling, "IN_FLIGHT_BYTES", 3 * 4096 + 1)
    rig = make_rig()
    rig.turn(conversation(10)[0])
    rig.cache.poll()
    assert (len(rig.storing), rig.pins) == (3, 3)
    rig.settle()
    assert len(rig.tier.keys) == 10


def test_a_step_looks_at_some_of_what_waits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling, "STEP_KEYS", 4)
    hashes, stored = conversation(10)
    rig.turn(hashes[:3])
    rig.turn(hashes)
    rig.cache.poll()
    assert rig.storing == stored[:4]
    rig.cache.poll()
    assert rig.storing == stored[:8]
    rig.cache.poll()
    assert rig.storing == stored


def test_a_job_has_a_limited_size(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling, "BATCH_BYTES", 3 * 4096)
    rig.turn(conversation(8)[0])
    rig.cache.poll()
    assert [len(batch.keys) for batch in rig.tier.stores] == [3, 3, 2]


# --- before eviction


@pytest.fixture
def lazy(make_rig: MakeRig) -> Rig:
    """A pool of 32 slots, of which 2 are to be free or written."""
    return make_rig(spills=["on_evict"])


def test_nothing_is_written_ahead_while_there_is_room(lazy: Rig) -> None:
    lazy.turn(conversation(30)[0])
    lazy.cache.poll()
    assert lazy.storing == []


def test_what_is_evicted_next_is_written_ahead(lazy: Rig) -> None:
    hashes, stored = conversation(32)
    lazy.turn(hashes)
    for _ in range(3):
        lazy.cache.poll()
        assert lazy.storing == [stored[31], stored[30]]
    lazy.settle()
    assert lazy.tier.keys == [stored[31], stored[30]]
    for number in range(5):
        lazy.turn(conversation(2, name=f"o{number}")[0])
        lazy.settle()
    assert [key for key in stored if lazy.tier.has(key)] == stored[20:]
    assert [key for key in stored if not lazy.here([key])[0]] == stored[22:]
    assert len(lazy.tier.offered) == len({k for batch in lazy.tier.offered for k in batch.keys}) / 2


def test_what_is_demoted_is_evicted_unwritten(lazy: Rig) -> None:
    hashes, stored = conversation(32)
    lazy.turn(hashes)
    lazy.cache.primary.pools[FULL].demote(stored[:1])
    lazy.cache.poll()
    assert lazy.storing == [stored[31]]


def test_tiers_of_both_kinds_get_what_is_theirs(make_rig: MakeRig) -> None:
    rig = make_rig(spills=["on_evict", "on_store"])
    hashes, stored = conversation(32)
    rig.turn(hashes)
    rig.settle()
    lazy, eager = rig.tiers
    assert lazy.keys == [stored[31], stored[30]]
    assert sorted(eager.keys) == sorted(stored)


# --- tiers that do not take it


def test_what_is_declined_is_neither_kept_nor_offered_again(rig: Rig) -> None:
    rig.tier.declines = True
    rig.turn(conversation(6)[0])
    rig.cache.poll()
    assert len(rig.tier.offered) == 1
    assert rig.pins == 0
    for _ in range(10):
        rig.after(1.0)
    assert len(rig.tier.offered) == 1
    assert not rig.pending()


def test_a_tier_that_declines_does_not_keep_another_from_taking(make_rig: MakeRig) -> None:
    rig = make_rig(spills=["on_store", "on_store"])
    rig.tiers[0].declines = True
    hashes, stored = conversation(6)
    rig.turn(hashes)
    rig.settle()
    assert rig.tiers[0].keys == []
    assert sorted(rig.tiers[1].keys) == sorted(stored)


def test_a_tier_that_declined_is_left_alone_for_a_while(lazy: Rig) -> None:
    lazy.tier.declines = True
    hashes, stored = conversation(32)
    lazy.turn(hashes)
    for _ in range(10):
        lazy.cache.poll()
    assert len(lazy.tier.offered) == 1
    assert lazy.pins == 0
    lazy.tier.declines = False
    lazy.after(DECLINED_REST_S)
    assert lazy.storing == [stored[31], stored[30]]


def test_a_store_that_fails_leaves_the_entry_where_it_is(rig: Rig) -> None:
    hashes, stored = conversation(6)
    rig.turn(hashes)
    rig.cache.poll()
    rig.end(failed=lambda key: True)
    assert rig.tier.keys == []
    assert rig.pins == 0
    assert all(rig.here(stored))


def test_a_tier_that_hangs_pins_half_of_the_pool_and_no_more(rig: Rig) -> None:
    for number in range(10):
        rig.turn(conversation(12, name=f"c{number}")[0])
        rig.cache.poll()
        assert rig.pins <= 16
    hashes, _ = conversation(16, name="new")
    assert len(rig.store(rig.open(hashes), keys(hashes, FULL))) == 16
    rig.settle()
    assert rig.pins == 0


def test_nothing_waits_for_a_tier_that_is_sick(rig: Rig) -> None:
    rig.turn(conversation(24)[0])
    rig.cache.poll()
    rig.tier.sicken()
    rig.turn(conversation(4, name="other")[0])
    rig.cache.poll()
    assert not rig.spiller.has_work(rig.tier)
    rig.tier.sicken(healthy=True)
    rig.settle()
    assert len(rig.tier.keys) == 16


# --- resets and the end


def test_a_reset_forgets_what_waits_and_what_runs(rig: Rig) -> None:
    hashes, stored = conversation(24, 24)
    request = rig.open(hashes)
    rig.store(request, stored)
    rig.cache.poll()
    assert rig.pins == 16
    rig.cache.reset()
    assert rig.pins == 0
    assert not rig.spiller.has_work(rig.tier)
    rig.after(STATE_REST_S)
    assert len(rig.storing) == 16
    rig.end()
    assert rig.tier.keys == []
    assert not rig.pending()


def test_a_job_from_before_a_reset_unpins_nothing(make_rig: MakeRig) -> None:
    """The same blocks are pinned anew when it ends."""
    rig = make_rig(groups=[full(FULL)])
    hashes, stored = conversation(6)
    rig.turn(hashes)
    rig.cache.poll()
    old = [batch.job_id for batch in rig.tier.stores]
    rig.cache.reset()
    rig.turn(hashes)
    request = rig.open(hashes)
    rig.cache.load(request, stored)
    rig.end(*old)
    assert rig.pins >= 6
    rig.cache.release(stored)
    rig.settle()
    assert rig.pins == 0


def test_what_waits_is_written_at_the_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling, "STEP_KEYS", 2)
    hashes, stored = conversation(6, 6)
    rig.store(rig.open(hashes), stored)
    rig.cache.close()
    assert sorted(k for batch in rig.tier.offered for k in batch.keys) == sorted(stored)


def test_closing_twice_writes_once(rig: Rig) -> None:
    rig.turn(conversation(6)[0])
    rig.cache.close()
    rig.cache.close()
    assert len(rig.tier.offered) == 1
