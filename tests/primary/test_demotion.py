# SPDX-License-Identifier: Apache-2.0
"""Demotion of superseded states: the nine rules, and the faults that others met."""

import pytest

from tests.core_helpers import (
    FULL,
    STATES,
    MakeTier,
    chain,
    checkpoint,
    is_demoted,
    keys,
    load,
    reserve,
    restorable,
    store,
    turn,
    victims,
)
from tiercache.events import Event, EventKind
from tiercache.primary import PrimaryTier

#: One conversation, and another that shares its first four blocks.
MAIN = chain("a", 16)
BRANCH = chain("b", 12, after=MAIN[:4])


def demoted(tier: PrimaryTier, hashes: list[bytes]) -> list[int]:
    """The boundaries, in blocks, whose checkpoints are demoted in every state group."""
    return [
        blocks
        for blocks in range(1, len(hashes) + 1)
        if all(is_demoted(tier, checkpoint(hashes, blocks)))
    ]


# --- rule 1: counted from the newest stored state


def test_older_states_are_demoted_when_a_request_ends(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:4], 4)
    turn(tier, MAIN[:8], 8)
    assert demoted(tier, MAIN) == [4]


@pytest.mark.parametrize(("keep_blocks", "expected"), [(1, [2, 4, 5]), (3, [2]), (5, [])])
def test_states_close_to_the_newest_are_kept(
    make_tier: MakeTier, keep_blocks: int, expected: list[int]
) -> None:
    tier = make_tier(keep_blocks=keep_blocks)
    turn(tier, MAIN[:6], 2, 4, 5, 6)
    assert demoted(tier, MAIN) == expected


def test_a_long_answer_does_not_demote_the_newest_state(tier: PrimaryTier) -> None:
    hashes = MAIN[:6]
    request = tier.open("", hashes)
    store(tier, request, [*keys(hashes, FULL), *checkpoint(hashes, 2), *checkpoint(hashes, 6)])
    hashes += MAIN[6:]
    tier.finish(request)
    assert demoted(tier, MAIN) == [2]


# --- rule 2: forks are kept


def test_a_fork_is_kept(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:4], 4)
    turn(tier, MAIN[:7], 7)
    turn(tier, BRANCH[:8], 8)
    turn(tier, MAIN[:12], 12)
    assert demoted(tier, MAIN) == [7]


def test_a_fork_is_demoted_if_so_configured(make_tier: MakeTier) -> None:
    tier = make_tier(demote_forks=True)
    turn(tier, MAIN[:4], 4)
    turn(tier, MAIN[:7], 7)
    turn(tier, BRANCH[:8], 8)
    turn(tier, MAIN[:12], 12)
    assert demoted(tier, MAIN) == [4, 7]


def test_a_junction_whose_branches_came_first_is_a_fork(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:9], 9)
    turn(tier, BRANCH[:9], 9)
    third = chain("c", 8, after=MAIN[:4])
    turn(tier, third, 4, 12)
    assert demoted(tier, third) == []


def test_a_demoted_state_that_becomes_a_fork_is_live_again(tier: PrimaryTier) -> None:
    """The second conversation found its prefix on the device: nothing was loaded from here."""
    turn(tier, MAIN[:8], 4, 8)
    assert demoted(tier, MAIN) == [4]
    request = tier.open("", BRANCH)
    store(tier, request, keys(BRANCH, FULL))
    store(tier, request, checkpoint(BRANCH, 9))
    assert demoted(tier, MAIN) == []


def test_a_demoted_state_that_takes_over_a_fork_is_live_again(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=4, keep_blocks=1)
    turn(tier, MAIN[:8], 2, 4, 8)
    turn(tier, BRANCH[:8], 8)
    tier.pin(tier.open("", MAIN[:2]), checkpoint(MAIN, 2))
    turn(tier, MAIN[:8])
    assert demoted(tier, MAIN) == [2]
    other = chain("x", 4)
    reserve(tier, tier.open("", other), checkpoint(other, 4))
    assert restorable(tier, tier.open("", MAIN[:7])) == 2
    assert demoted(tier, MAIN) == []


def test_a_fork_that_lost_a_branch_can_be_superseded(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=3)
    turn(tier, BRANCH[:8], 4, 8)
    turn(tier, MAIN[:8], 8)
    other = chain("x", 4)
    evicting = reserve(tier, tier.open("", other), checkpoint(other, 4))
    tier.fail(evicting.keys)
    assert evicting.evicted == checkpoint(BRANCH, 8)
    turn(tier, MAIN[:9])
    assert demoted(tier, MAIN) == [4]


# --- rule 3: only a committed successor supersedes, and after the request's own recency


def test_a_state_in_flight_supersedes_nothing_yet(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:4], 4)
    request = tier.open("", MAIN[:8])
    load(tier, request)
    in_flight = reserve(tier, request, checkpoint(MAIN, 8)).keys
    tier.finish(request)
    assert demoted(tier, MAIN) == []
    tier.commit(in_flight[:1])
    assert demoted(tier, MAIN) == []
    tier.commit(in_flight[1:])
    assert demoted(tier, MAIN) == [4]


@pytest.mark.parametrize("finish_first", [True, False])
def test_a_state_that_fails_supersedes_nothing(tier: PrimaryTier, finish_first: bool) -> None:
    turn(tier, MAIN[:4], 4)
    request = tier.open("", MAIN[:8])
    load(tier, request)
    reservation = reserve(tier, request, checkpoint(MAIN, 8))
    if finish_first:
        tier.finish(request)
    tier.commit(reservation.keys[:1])
    tier.fail(reservation.keys[1:])
    tier.finish(request)
    assert demoted(tier, MAIN) == []
    assert restorable(tier, tier.open("", MAIN)) == 4


def test_an_aborted_request_demotes_nothing(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:4], 4)
    request = tier.open("", MAIN)
    load(tier, request)
    store(tier, request, keys(MAIN, FULL))
    tier.finish(request)
    assert demoted(tier, MAIN) == []


def test_recency_does_not_undo_the_demotion_of_what_was_offered_again(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:4], 2, 4)
    request = tier.open("", MAIN[:8])
    load(tier, request)
    store(tier, request, checkpoint(MAIN, 8))
    for blocks in (2, 4):
        store(tier, request, checkpoint(MAIN, blocks))
    tier.finish(request)
    assert demoted(tier, MAIN) == [2, 4]


def test_recency_does_not_undo_the_demotion_of_what_the_request_stored(tier: PrimaryTier) -> None:
    turn(tier, MAIN, *range(2, 17, 2))
    assert demoted(tier, MAIN) == [2, 4, 6, 8, 10, 12]


# --- rule 4: by group


def test_attention_blocks_are_not_superseded(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:4], 4)
    turn(tier, MAIN[:8], 8)
    assert tier.counts()[FULL].demoted == 0
    assert [tier.counts()[group_id].demoted for group_id in STATES] == [1, 1]


# --- rule 5: order, missing and pinned entries


def test_the_oldest_is_the_first_victim(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:2], 2)
    turn(tier, BRANCH[:10], 6, 10)
    turn(tier, MAIN[:9], 5, 9)
    for group_id in STATES:
        assert victims(tier, group_id)[:2] == [BRANCH[5], MAIN[4]]


def test_superseded_states_go_before_live_ones(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=3)
    idle = chain("idle", 4)
    turn(tier, idle, 4)
    turn(tier, MAIN[:4], 4)
    turn(tier, MAIN[:8], 8)
    turn(tier, MAIN[:12], 12)
    assert restorable(tier, tier.open("", idle)) == 4


def test_states_that_are_gone_are_not_demoted(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=2)
    turn(tier, MAIN[:8], 2, 4, 8)
    assert tier.journal.count(STATES[0], EventKind.DEMOTED) == 1
    assert victims(tier, STATES[0]) == [MAIN[3], MAIN[7]]


def test_a_pinned_state_is_demoted_and_goes_once_it_is_unpinned(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=2)
    turn(tier, MAIN[:4], 4)
    pinned = checkpoint(MAIN, 4)
    tier.pin(tier.open("reader", MAIN[:4]), pinned)
    turn(tier, MAIN[:8], 8)
    assert demoted(tier, MAIN) == [4]
    assert victims(tier, STATES[0]) == [MAIN[7]]
    tier.unpin(pinned)
    assert victims(tier, STATES[0]) == [MAIN[3], MAIN[7]]


# --- rule 6: a hit refreshes what it consumes


def test_a_hit_refreshes_only_the_state_that_it_consumes(make_tier: MakeTier) -> None:
    """C03: the states before it keep their rank."""
    tier = make_tier(demote=False)
    turn(tier, MAIN[:9], 3, 6, 9)
    turn(tier, chain("x", 3), 3)
    turn(tier, MAIN[:7])
    assert victims(tier, STATES[0]) == [MAIN[2], MAIN[8], b"x2", MAIN[5]]


def test_a_hit_undoes_the_demotion_of_the_whole_checkpoint(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:8], 4, 8)
    tier.pin(tier.open("", MAIN[:4]), checkpoint(MAIN, 4)[:1])
    assert is_demoted(tier, checkpoint(MAIN, 4)) == [False, False]


def test_a_demoted_state_can_still_be_restored(tier: PrimaryTier) -> None:
    """C23: an edit in the middle of a prompt falls back to the newest state before it."""
    turn(tier, MAIN[:14], *range(2, 15, 2))
    edited = chain("edit", 5, after=MAIN[:9])
    assert turn(tier, edited, 14) == 8


# --- rules 7 and 8: policies and the switch


def test_arc_demotes_nothing(make_tier: MakeTier) -> None:
    tier = make_tier(policy="arc")
    turn(tier, MAIN[:8], 4, 8)
    assert demoted(tier, MAIN) == []
    assert tier.journal.total(EventKind.DEMOTED) == 0


def test_demotion_can_be_switched_off(make_tier: MakeTier) -> None:
    tier = make_tier(demote=False)
    turn(tier, MAIN[:8], 4, 8)
    assert demoted(tier, MAIN) == []


# --- rule 9: every demotion is an event and a counter


def test_a_demotion_is_told_and_counted_once(tier: PrimaryTier) -> None:
    told: list[Event] = []
    tier.journal.listeners.append(told.append)
    turn(tier, MAIN[:8], 4, 8, name="the request")
    assert [event for event in told if event.kind is EventKind.DEMOTED] == [
        Event(EventKind.DEMOTED, group_id, checkpoint(MAIN, 4)[i : i + 1], "the request")
        for i, group_id in enumerate(STATES)
    ]
    assert [tier.journal.count(group_id, EventKind.DEMOTED) for group_id in STATES] == [1, 1]


# --- what others met


def test_a_fork_outlives_the_states_before_and_after_it(make_tier: MakeTier) -> None:
    """C04: a chain of 16 states, forked at 4; under pressure the fork is still there."""
    tier = make_tier(full_slots=64, state_slots=17)
    turn(tier, MAIN, *range(1, 17))
    turn(tier, BRANCH, 12)
    for i in range(12):
        turn(tier, chain(f"x{i}", 1), 1)
    assert turn(tier, chain("c", 4, after=MAIN[:4])) == 4


def test_a_conversation_keeps_two_states_however_many_turns_it_takes(
    make_tier: MakeTier,
) -> None:
    """C07: states per conversation that are not demoted, and one for each fork."""
    tier = make_tier(full_slots=200, state_slots=100)
    prompt = chain("system", 4)
    turn(tier, prompt, 4)
    for name in ("a", "b"):
        for blocks in range(4, 44, 4):
            turn(tier, chain(name, blocks, after=prompt), blocks + 3, blocks + 4)
    live = tier.counts()[STATES[0]].live
    assert live <= 2 * 2 + 1


def test_one_long_prompt_does_not_evict_the_newest_state_of_another(make_tier: MakeTier) -> None:
    """C16: 100 checkpoints on the way of one prompt, in a pool of eight."""
    tier = make_tier(full_slots=200, state_slots=8)
    other, long = chain("x", 4), chain("long", 100)
    turn(tier, other, 4)
    turn(tier, long, *range(1, 101))
    assert restorable(tier, tier.open("", other)) == 4
    assert restorable(tier, tier.open("", long)) == 100
