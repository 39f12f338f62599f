# SPDX-License-Identifier: Apache-2.0
"""The tiers together: what is lost and what is not, waiting for them, resets, the end."""

import pytest

from tests.core_helpers import BLOCK, FULL, STATES, checkpoint, is_demoted, key, keys
from tests.tiering.conftest import MakeRig
from tests.tiering.rig import HYBRID, PATIENCE_S, Rig, conversation
from tiercache.blocks import Key
from tiercache.cache import TieredCache
from tiercache.events import EventKind
from tiercache.jobs import Jobs
from tiercache.promotion import KEEP_S
from tiercache.spilling import STATE_REST_S
from tiercache.tiers.base import Done

# --- without secondary tiers


@pytest.fixture
def alone() -> TieredCache:
    cache = TieredCache(HYBRID, dict.fromkeys((FULL, *STATES), 8), tokens_per_hash=BLOCK)
    cache.attach([])
    return cache


def test_without_tiers_there_is_nothing_to_wait_for(alone: TieredCache) -> None:
    hashes, stored = conversation(6, 6)
    request = alone.open("", hashes)
    reservation = alone.reserve(request, stored)
    assert reservation is not None
    alone.commit(reservation.keys)
    assert not alone.pending
    assert not alone.is_loading(stored[0])
    alone.poll()
    plan = alone.restore(request, limit=6 * BLOCK)
    assert plan == alone.plan(request, limit=6 * BLOCK)
    assert plan is not None
    assert plan.boundary == 6 * BLOCK
    alone.reset()
    alone.finish(request)
    alone.close()
    alone.close()
    alone.validate()


# --- what is lost


def test_blocks_whose_state_is_elsewhere_are_not_stranded(rig: Rig) -> None:
    hashes, stored = conversation(6, 6)
    rig.turn(hashes, 6)
    rig.settle()
    crowd_out_states(rig)
    assert not any(rig.here(checkpoint(hashes, 6)))
    assert not any(is_demoted(rig.cache.primary, keys(hashes, FULL)))
    request = rig.open(hashes)
    assert sorted(rig.wants(request)) == sorted(checkpoint(hashes, 6))
    rig.end()
    assert rig.load(request) == 6
    assert all(rig.here(stored))


def test_blocks_that_lack_a_state_everywhere_are_stranded(rig: Rig) -> None:
    """A checkpoint with one member missing is worth nothing, wherever the others are."""
    hashes, _ = conversation(6, 6)
    rig.turn(hashes, 6)
    rig.settle()
    rig.tier.forget(checkpoint(hashes, 6)[:1])
    crowd_out_states(rig)
    assert all(is_demoted(rig.cache.primary, keys(hashes, FULL)))


def test_a_state_whose_companion_is_elsewhere_is_not_discarded(rig: Rig) -> None:
    """Its request ends after the companion was evicted."""
    hashes, _ = conversation(6)
    gone, here = checkpoint(hashes, 6)
    request = rig.open(hashes)
    rig.store(request, [*keys(hashes, FULL), gone, here])
    rig.after(STATE_REST_S)
    rig.settle()
    rig.cache.primary.pools[STATES[0]].demote([gone])
    other, _ = conversation(8, name="other")
    rig.store(rig.open(other), keys(other, STATES[0]))
    assert rig.here([gone, here]) == [False, True]
    rig.cache.finish(request)
    assert not any(is_demoted(rig.cache.primary, [here]))
    assert rig.cache.journal.total(EventKind.STRANDED) == 0


def crowd_out_states(rig: Rig) -> None:
    others, _ = conversation(8, name="other")
    request = rig.open(others)
    rig.store(request, keys(others, *STATES))
    rig.cache.finish(request)


def test_a_conversation_that_went_down_comes_back_as_it_was(rig: Rig) -> None:
    hashes, _ = conversation(12, 12)
    rig.turn(hashes, 12)
    rig.settle()
    for name in "bcd":
        rig.turn(conversation(24, name=name)[0], 24)
        rig.settle()
    assert not any(rig.here(keys(hashes, FULL)))
    request = rig.open([*hashes, *conversation(3, name="tail")[0]])
    rig.wants(request)
    rig.end()
    assert rig.load(request) == 12


def test_what_was_stored_is_there_after_a_restart(rig: Rig) -> None:
    hashes, _ = conversation(12, 12)
    rig.turn(hashes, 12)
    rig.settle()
    rig.restart()
    request = rig.open(hashes)
    rig.wants(request)
    rig.end()
    assert rig.load(request) == 12


def test_a_slower_tier_has_what_a_faster_one_has_evicted(make_rig: MakeRig) -> None:
    rig = make_rig(spills=["on_store", "on_store"])
    hashes, stored = conversation(12, 12)
    rig.turn(hashes, 12)
    rig.settle()
    rig.restart()
    rig.tiers[0].forget(stored[6:])
    request = rig.open(hashes)
    assert sorted(rig.wants(request)) == sorted(stored)
    assert sorted(k for batch in rig.tiers[1].loads for k in batch.keys) == sorted(stored[6:])
    rig.settle()
    assert rig.load(request) == 12


def test_a_faster_tier_that_is_sick_is_passed_over(make_rig: MakeRig) -> None:
    rig = make_rig(spills=["on_store", "on_store"])
    hashes, stored = conversation(6, 6)
    rig.stock(stored, rig.tiers[0])
    rig.stock(stored, rig.tiers[1])
    rig.tiers[0].sicken()
    rig.wants(rig.open(hashes))
    assert rig.tiers[0].loads == []


# --- waiting


def test_what_waits_or_runs_is_pending(rig: Rig) -> None:
    hashes, _ = conversation(6, 6)
    assert not rig.pending()
    rig.turn(hashes, 6)
    assert rig.pending()
    rig.cache.poll()
    assert rig.pending()
    rig.tier.end()
    assert rig.pending()
    rig.cache.poll()
    assert not rig.pending()


def test_a_state_that_rests_is_pending(rig: Rig) -> None:
    hashes, _ = conversation(6)
    rig.store(rig.open(hashes), checkpoint(hashes, 6))
    rig.cache.poll()
    assert rig.pending()
    rig.after(STATE_REST_S)
    rig.settle()
    assert not rig.pending()


def test_a_request_that_waits_is_pending(rig: Rig) -> None:
    hashes, stocked = conversation(6, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    assert rig.ask(request) is None
    assert rig.pending()
    rig.cache.poll()
    rig.end()
    assert not rig.pending()


def test_nothing_is_to_be_expected_of_a_sick_tier(rig: Rig) -> None:
    hashes, stocked = conversation(6, 6)
    other, _ = conversation(6, name="other")
    rig.stock(stocked)
    rig.turn(other, 6)
    rig.wants(rig.open(hashes))
    rig.tier.sicken()
    rig.after(PATIENCE_S)
    rig.after(KEEP_S)
    assert not rig.pending()


def test_a_sick_tier_does_not_hide_a_healthy_one(make_rig: MakeRig) -> None:
    rig = make_rig(spills=["on_store", "on_store"])
    rig.turn(conversation(6)[0])
    rig.cache.poll()
    rig.tiers[0].sicken()
    assert rig.pending()
    rig.tiers[1].end()
    rig.cache.poll()
    assert not rig.pending()


# --- resets and the end


def test_a_reset_drops_everything_for_good(make_rig: MakeRig) -> None:
    rig = make_rig(spills=["on_store", "on_evict"])
    hashes, stored = conversation(32, 32)
    rig.turn(hashes, 32)
    rig.settle()
    rig.cache.reset()
    request = rig.open(hashes)
    assert rig.ask(request) == 0
    assert not any(rig.here(stored))
    assert not any(tier.keys for tier in rig.tiers)
    rig.restart()
    assert rig.ask(rig.open(hashes)) == 0


def test_a_reset_takes_effect_on_what_is_being_stored(rig: Rig) -> None:
    hashes, _ = conversation(12)
    request = rig.open(hashes)
    rig.store(request, keys(hashes, FULL))
    rig.cache.poll()
    rig.cache.reset()
    rig.store(request, keys(hashes, FULL))
    rig.settle()
    rig.cache.finish(request)
    rig.restart()
    assert rig.ask(rig.open(hashes)) == 0  # no state


def test_a_closed_cache_has_closed_its_tiers(make_rig: MakeRig) -> None:
    rig = make_rig(spills=["on_store", "on_store"])
    rig.cache.close()
    assert [tier.stats().healthy for tier in rig.tiers] == [False, False]


# --- jobs


def test_jobs_are_numbered_and_told_once(rig: Rig) -> None:
    told: list[Done] = []
    jobs = Jobs([rig.tier])
    wanted: list[Key] = [key("a"), key("b")]
    jobs.load(rig.tier, FULL, wanted[:1], [0], told.append)
    assert jobs.store(rig.tier, FULL, wanted[1:], [1], told.append)
    assert jobs.running(rig.tier) == 2
    jobs.poll()
    assert told == []
    rig.tier.end()
    jobs.poll()
    jobs.poll()
    assert [(done.job_id, list(done.failed)) for done in told] == [(1, wanted[:1]), (2, [])]
    assert jobs.running(rig.tier) == 0


def test_a_job_that_is_declined_is_not_told_of(rig: Rig) -> None:
    told: list[Done] = []
    jobs = Jobs([rig.tier])
    rig.tier.declines = True
    assert not jobs.store(rig.tier, FULL, [key("a")], [0], told.append)
    jobs.poll()
    assert told == []
    assert jobs.running(rig.tier) == 0


def test_the_first_tier_comes_first(make_rig: MakeRig) -> None:
    rig = make_rig(spills=["on_store", "on_store"])
    a, b, c, d = map(key, "abcd")
    rig.stock([a, b], rig.tiers[0])
    rig.stock([b, c], rig.tiers[1])
    jobs = Jobs(rig.tiers)
    assert jobs.sources([d, c, b, a]) == {rig.tiers[0]: [b, a], rig.tiers[1]: [c]}
    assert [jobs.has(each) for each in (a, b, c, d)] == [True, True, True, False]


def test_a_step_hears_of_as_many_entries_as_it_has_time_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a tier that comes back with much at once; a job is not divided."""
    monkeypatch.setattr("tiercache.jobs.STEP_KEYS", 1)
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    rig.wants(rig.open(hashes))
    rig.tier.end()
    storing = []
    for _ in (FULL, *STATES):
        assert rig.cache.pending
        rig.cache.poll()
        storing.append(sum(group.storing for group in rig.cache.counts().values()))
    assert storing == sorted(set(storing), reverse=True)
    assert storing[-1] == 0
