# SPDX-License-Identifier: Apache-2.0
"""Reserve, commit, fail and pin over several groups, and the recency that a request leaves."""

import pytest

from tests.core_helpers import (
    BLOCK,
    FULL,
    STATES,
    MakeTier,
    chain,
    checkpoint,
    full,
    keys,
    load,
    reserve,
    restorable,
    store,
    turn,
    victims,
    window,
)
from tiercache.blocks import Key
from tiercache.events import Event, EventKind, Fate
from tiercache.primary import PrimaryTier
from tiercache.slots import Presence, SlotCounts

MAIN = chain("a", 8)
OTHER = chain("x", 8)
FIRST, SECOND = STATES


# --- reserve


def test_slots_are_numbered_within_each_group(tier: PrimaryTier) -> None:
    wanted = [*keys(MAIN[:2], FULL), *checkpoint(MAIN, 2)]
    reservation = reserve(tier, tier.open("", MAIN), wanted)
    assert reservation == (wanted, [0, 1, 0, 0], [])


def test_what_is_there_or_in_flight_is_not_reserved_again(tier: PrimaryTier) -> None:
    request = tier.open("", MAIN)
    store(tier, request, keys(MAIN[:1], FULL))
    reserve(tier, request, keys(MAIN[1:2], FULL))
    assert reserve(tier, request, keys(MAIN[:3], FULL)).keys == keys(MAIN[2:3], FULL)


def test_a_key_given_twice_gets_one_slot(tier: PrimaryTier) -> None:
    [block] = keys(MAIN[:1], FULL)
    reservation = reserve(tier, tier.open("", MAIN), [block, *checkpoint(MAIN, 1), block])
    assert reservation.keys.count(block) == 1


def test_what_was_evicted_is_returned(make_tier: MakeTier) -> None:
    tier = make_tier(full_slots=2)
    turn(tier, OTHER[:2])
    assert store(tier, tier.open("", MAIN), keys(MAIN[:1], FULL)) == keys(OTHER[1:2], FULL)


def test_without_room_in_one_group_nothing_is_evicted_in_any(make_tier: MakeTier) -> None:
    tier = make_tier(full_slots=2, state_slots=1)
    turn(tier, OTHER[:2], 2)
    reader = tier.open("", OTHER[:2])
    tier.pin(reader, checkpoint(OTHER, 2)[1:])
    before = tier.counts()
    assert tier.reserve(tier.open("", MAIN), [*keys(MAIN[:2], FULL), *checkpoint(MAIN, 2)]) is None
    assert tier.counts() == before
    assert restorable(tier, reader) == 2


def test_without_room_what_is_in_flight_stays_in_flight(make_tier: MakeTier) -> None:
    tier = make_tier(full_slots=3, state_slots=1)
    request = tier.open("", MAIN)
    in_flight = reserve(tier, request, [*keys(MAIN[:1], FULL), *checkpoint(MAIN, 1)]).keys
    assert tier.reserve(request, [*keys(MAIN[:3], FULL), *checkpoint(MAIN, 2)]) is None
    assert [tier.state(k) for k in in_flight] == [Presence.STORING] * 3
    assert tier.counts()[FULL].free == 2


def test_a_refusal_is_told_and_counted(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=1)
    reserve(tier, tier.open("", OTHER), checkpoint(OTHER, 1))
    tier.reserve(tier.open("", MAIN), checkpoint(MAIN, 1))
    assert tier.journal.count(FIRST, EventKind.REFUSED) == 1


def test_no_key_of_a_call_is_evicted_by_it(make_tier: MakeTier) -> None:
    tier = make_tier(full_slots=4)
    turn(tier, MAIN[:2])
    turn(tier, OTHER[:2])
    assert store(tier, tier.open("", MAIN), keys(MAIN[:4], FULL)) == keys(OTHER[1::-1], FULL)


def test_a_call_that_needs_its_own_keys_gone_is_refused(make_tier: MakeTier) -> None:
    tier = make_tier(full_slots=2)
    turn(tier, MAIN[:2])
    assert tier.reserve(tier.open("", MAIN), keys(MAIN[:3], FULL)) is None


def test_a_prompt_longer_than_its_group_keeps_its_beginning(make_tier: MakeTier) -> None:
    tier = make_tier(full_slots=6)
    request = tier.open("", MAIN)
    for end in (4, 8):
        reservation = tier.reserve(request, keys(MAIN[end - 4 : end], FULL))
        if reservation is not None:
            tier.commit(reservation.keys)
    assert tier.state(keys(MAIN, FULL)[0]) is Presence.READY


def test_a_key_of_an_unknown_group_is_missing(tier: PrimaryTier) -> None:
    assert tier.state(keys(MAIN, 9)[0]) is Presence.MISSING


# --- commit, fail, pin


def test_commit_and_fail_ignore_what_is_not_in_flight(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 8)
    before = tier.counts()
    tier.commit({*keys(MAIN, FULL), *checkpoint(OTHER, 1)})
    tier.fail({*keys(MAIN, FULL), *checkpoint(OTHER, 1)})
    assert tier.counts() == before
    assert tier.journal.total(EventKind.FAILED) == 0


def test_a_failed_store_frees_its_slots(tier: PrimaryTier) -> None:
    wanted = [*keys(MAIN, FULL), *checkpoint(MAIN, 8)]
    tier.fail(set(reserve(tier, tier.open("", MAIN), wanted).keys))
    assert {tier.state(k) for k in wanted} == {Presence.MISSING}
    assert tier.journal.total(EventKind.FAILED) == len(wanted)


def test_a_state_that_is_stored_later_is_restored(tier: PrimaryTier) -> None:
    """C20: the attention blocks were there before."""
    turn(tier, MAIN)
    request = tier.open("", MAIN)
    assert restorable(tier, request) == 0
    for member in checkpoint(MAIN, 8):
        store(tier, request, [member])
    assert restorable(tier, request) == 8


def test_a_checkpoint_in_flight_is_pending(tier: PrimaryTier) -> None:
    request = tier.open("", MAIN)
    store(tier, request, keys(MAIN, FULL))
    reserve(tier, request, checkpoint(MAIN, 8))
    plan = tier.plan(request, start=0, limit=8 * BLOCK)
    assert (plan.boundary, plan.pending) == (8 * BLOCK, True)


def test_pin_returns_the_slots_of_the_keys(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 4, 8)
    wanted = [*keys(MAIN[5:3:-1], FULL), *checkpoint(MAIN, 8)]
    assert tier.pin(tier.open("", MAIN), wanted) == [5, 4, 1, 1]
    assert tier.journal.total(EventKind.RESTORED) == 4
    tier.unpin(set(wanted))
    assert {counts.pinned for counts in tier.counts().values()} == {0}


def test_pinning_what_is_not_there_pins_nothing_in_any_group(tier: PrimaryTier) -> None:
    request = tier.open("", MAIN)
    store(tier, request, keys(MAIN, FULL))
    reserve(tier, request, checkpoint(MAIN, 8))
    with pytest.raises(KeyError):
        tier.pin(request, [*keys(MAIN, FULL), *checkpoint(MAIN, 8)])
    assert tier.counts()[FULL].pinned == 0
    assert tier.journal.total(EventKind.RESTORED) == 0


def test_the_fate_of_a_key_names_who_evicted_it(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=1, clock=lambda: 42.0)
    turn(tier, MAIN, 8, name="first")
    turn(tier, OTHER, 8, name="second")
    assert tier.journal.fate(checkpoint(MAIN, 8)[0]) == Fate(42.0, "second")
    assert tier.journal.count(FIRST, EventKind.EVICTED_LIVE) == 1


def test_an_eviction_after_a_demotion_is_counted_apart(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=2)
    turn(tier, MAIN, 4, 8)
    turn(tier, OTHER, 8)
    assert tier.journal.count(FIRST, EventKind.EVICTED_DEMOTED) == 1
    assert tier.journal.count(FIRST, EventKind.EVICTED_LIVE) == 0


# --- the recency that a request leaves


def test_a_prefix_shrinks_from_its_end_and_the_newest_state_goes_last(make_tier: MakeTier) -> None:
    tier = make_tier(demote=False)
    turn(tier, MAIN, 2, 4, 8)
    assert victims(tier) == MAIN[::-1]
    assert victims(tier, FIRST) == [MAIN[1], MAIN[3], MAIN[7]]


def test_the_newest_block_of_a_window_goes_last() -> None:
    groups = [full(0), window(1, 2)]
    tier = PrimaryTier(groups, {0: 8, 1: 8}, tokens_per_hash=BLOCK)
    request = tier.open("", MAIN)
    store(tier, request, keys(MAIN, 0, 1))
    tier.finish(request)
    assert (victims(tier, 0), victims(tier, 1)) == (MAIN[::-1], MAIN)


def test_blocks_that_are_written_after_the_end_are_in_order(tier: PrimaryTier) -> None:
    """With a short answer the last stores complete when the request is over."""
    request = tier.open("", MAIN)
    store(tier, request, keys(MAIN[:4], FULL))
    late = reserve(tier, request, keys(MAIN[4:], FULL)).keys
    tier.finish(request)
    tier.commit(set(late))
    assert victims(tier) == MAIN[::-1]


def test_a_late_failure_ends_a_request_too(tier: PrimaryTier) -> None:
    request = tier.open("", MAIN)
    store(tier, request, keys(MAIN[:4], FULL))
    late = reserve(tier, request, keys(MAIN[4:], FULL)).keys
    tier.finish(request)
    tier.fail(set(late))
    assert victims(tier) == MAIN[3::-1]


def test_blocks_behind_the_prefix_of_the_device_are_in_order(tier: PrimaryTier) -> None:
    """The device has two blocks: the others are loaded before those two are offered."""
    turn(tier, MAIN)
    request = tier.open("", MAIN)
    tier.pin(request, keys(MAIN[2:], FULL))
    tier.unpin(set(keys(MAIN[2:], FULL)))
    store(tier, request, keys(MAIN, FULL))
    tier.finish(request)
    assert victims(tier) == MAIN[::-1]


def test_blocks_whose_load_ends_after_an_abort_are_in_order(tier: PrimaryTier) -> None:
    turn(tier, MAIN)
    request = tier.open("", MAIN)
    tier.pin(request, keys(MAIN, FULL))
    tier.finish(request)
    tier.unpin(set(keys(MAIN, FULL)))
    assert victims(tier) == MAIN[::-1]


def test_blocks_that_are_stored_again_are_in_order(tier: PrimaryTier) -> None:
    turn(tier, chain("other", 4, after=MAIN[:2]))
    store(tier, tier.open("", MAIN), keys(MAIN[4:6], FULL))
    turn(tier, MAIN)
    assert victims(tier)[-8:] == MAIN[::-1]


def test_arc_counts_what_a_request_stored_as_seen_once(make_tier: MakeTier) -> None:
    tier = make_tier(policy="arc")
    turn(tier, MAIN[:4])
    turn(tier, OTHER[:4])
    turn(tier, MAIN)
    assert victims(tier) == [*OTHER[3::-1], *MAIN[:3:-1], *MAIN[3::-1]]


def test_arc_does_not_count_what_a_request_offers_twice_as_seen_again(make_tier: MakeTier) -> None:
    tier = make_tier(policy="arc")
    turn(tier, OTHER[:1])
    turn(tier, OTHER[:1])
    request = tier.open("", MAIN)
    store(tier, request, keys(MAIN[:4], FULL))
    store(tier, request, keys(MAIN, FULL))
    tier.finish(request)
    assert victims(tier) == [*MAIN[::-1], OTHER[0]]


# --- reset


def test_a_reset_drops_everything(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 4, 8)
    tier.reset()
    assert restorable(tier, tier.open("", MAIN)) == 0
    assert tier.counts()[FULL] == SlotCounts(free=32, storing=0, live=0, demoted=0, pinned=0)


def test_a_reset_is_told_with_what_was_dropped(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:2], 2)
    told: list[Event] = []
    tier.journal.listeners.append(told.append)
    tier.reset()
    dropped: set[Key] = {k for event in told for k in event.keys}
    assert {event.kind for event in told} == {EventKind.RESET}
    assert dropped == {*keys(MAIN[:2], FULL), *checkpoint(MAIN, 2)}


def test_what_is_reported_after_a_reset_is_ignored(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 8)
    request = tier.open("", OTHER)
    stores = reserve(tier, request, [*keys(OTHER, FULL), *checkpoint(OTHER, 8)]).keys
    ended = tier.open("", OTHER)
    stores += reserve(tier, ended, checkpoint(OTHER, 4)).keys
    tier.finish(ended)
    tier.pin(request, keys(MAIN, FULL))
    tier.reset()
    tier.commit(set(stores))
    tier.unpin(set(keys(MAIN, FULL)))
    assert {counts.storing for counts in tier.counts().values()} == {0}
    assert {counts.live for counts in tier.counts().values()} == {0}


def test_a_running_request_goes_on_after_a_reset(tier: PrimaryTier) -> None:
    request = tier.open("", MAIN)
    store(tier, request, [*keys(MAIN[:4], FULL), *checkpoint(MAIN, 4)])
    tier.reset()
    store(tier, request, [*keys(MAIN, FULL), *checkpoint(MAIN, 8)])
    tier.finish(request)
    assert load(tier, tier.open("", MAIN)) == 8
