# SPDX-License-Identifier: Apache-2.0
"""What becomes worthless when a checkpoint breaks, and what does not."""

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
from tiercache.blocks import BlockHash
from tiercache.events import EventKind
from tiercache.primary import PrimaryTier

MAIN = chain("a", 12)
BRANCH = chain("b", 8, after=MAIN[:4])
OTHER = chain("x", 2)
FIRST, SECOND = STATES


def evict_states(tier: PrimaryTier, count: int, *group_ids: int) -> None:
    """Have the next victims of the state groups evicted by stores that fail."""
    request = tier.open("evicting", chain("e", count))
    tier.fail(reserve(tier, request, keys(request.lineage.hashes, *(group_ids or STATES))).keys)
    tier.finish(request)


def stranded(tier: PrimaryTier, hashes: list[BlockHash]) -> list[BlockHash]:
    """The attention blocks of a prompt that are demoted, in the order in which they go."""
    demoted = set(filter(lambda k: is_demoted(tier, [k])[0], keys(hashes, FULL)))
    return [h for h in victims(tier) if demoted.issuperset(keys([h], FULL))]


# --- the members of a checkpoint


def test_when_a_member_goes_its_siblings_are_next(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=2)
    turn(tier, MAIN[:4], 4)
    turn(tier, OTHER, 2)
    tier.pools[SECOND].touch(keys([MAIN[3]], SECOND))
    evict_states(tier, 1, FIRST)
    assert restorable(tier, tier.open("", MAIN)) == 0
    assert victims(tier, SECOND) == [MAIN[3], OTHER[1]]


def test_siblings_go_even_before_what_was_demoted(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=3)
    turn(tier, MAIN[:8], 4, 8)
    turn(tier, OTHER, 2)
    tier.pin(tier.open("", MAIN), checkpoint(MAIN, 4)[:1])
    turn(tier, MAIN[:8])
    evict_states(tier, 1, FIRST)
    assert victims(tier, SECOND)[:2] == [OTHER[1], MAIN[3]]


def test_the_members_of_a_checkpoint_that_never_completed_are_next(tier: PrimaryTier) -> None:
    turn(tier, OTHER, 2)
    request = tier.open("", MAIN)
    store(tier, request, checkpoint(MAIN, 12)[:1])
    tier.finish(request)
    assert victims(tier, FIRST)[0] == MAIN[11]
    assert tier.journal.count(FIRST, EventKind.STRANDED) == 1


def test_a_checkpoint_that_another_request_completes_is_kept(tier: PrimaryTier) -> None:
    first, second = tier.open("", MAIN), tier.open("", MAIN)
    turn(tier, OTHER, 2)
    in_flight = reserve(tier, second, checkpoint(MAIN, 12)[1:]).keys
    store(tier, first, [*keys(MAIN, FULL), *checkpoint(MAIN, 12)[:1]])
    tier.finish(first)
    assert is_demoted(tier, checkpoint(MAIN, 12)[:1]) == [False]
    tier.commit(in_flight)
    assert restorable(tier, second) == 12


def test_a_checkpoint_that_another_request_fails_to_complete_is_next(tier: PrimaryTier) -> None:
    first, second = tier.open("", MAIN), tier.open("", MAIN)
    in_flight = reserve(tier, second, checkpoint(MAIN, 12)[1:]).keys
    store(tier, first, checkpoint(MAIN, 12)[:1])
    tier.finish(first)
    tier.fail(in_flight)
    tier.finish(second)
    assert is_demoted(tier, checkpoint(MAIN, 12)[:1]) == [True]


def test_a_checkpoint_that_is_completed_later_is_live(tier: PrimaryTier) -> None:
    first, second = checkpoint(MAIN, 12)
    request = tier.open("", MAIN)
    store(tier, request, [*keys(MAIN, FULL), first])
    tier.finish(request)
    store(tier, tier.open("", MAIN), [second])
    assert is_demoted(tier, [first, second]) == [False, False]


def test_a_member_that_is_offered_again_is_not_a_victim(tier: PrimaryTier) -> None:
    request = tier.open("", MAIN)
    store(tier, request, checkpoint(MAIN, 12)[:1])
    tier.finish(request)
    turn(tier, OTHER, 2)
    reserve(tier, tier.open("", MAIN), checkpoint(MAIN, 12))
    assert is_demoted(tier, checkpoint(MAIN, 12)[:1]) == [False]


def test_the_state_before_the_one_that_went_is_the_newest_again(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=3)
    turn(tier, MAIN[:8], 4, 8)
    turn(tier, OTHER, 2)
    tier.pin(tier.open("", MAIN[:4]), checkpoint(MAIN, 4))
    turn(tier, MAIN[:8])
    turn(tier, OTHER)
    evict_states(tier, 1)
    assert is_demoted(tier, checkpoint(MAIN, 4)) == [False, False]


# --- attention blocks


def test_the_attention_blocks_of_a_lost_conversation_go_next(make_tier: MakeTier) -> None:
    """C09: from the end of the prefix, and before anything of a live conversation."""
    tier = make_tier(state_slots=1)
    turn(tier, MAIN[:4], 4)
    turn(tier, OTHER, 2)
    assert victims(tier) == [*reversed(MAIN[:4]), *reversed(OTHER)]
    assert stranded(tier, MAIN) == MAIN[3::-1]
    assert tier.journal.count(FULL, EventKind.STRANDED) == 4


def test_blocks_behind_the_checkpoint_are_stranded_with_it(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=1)
    turn(tier, MAIN[:6], 4)
    turn(tier, OTHER, 2)
    assert stranded(tier, MAIN) == MAIN[5::-1]


def test_blocks_that_an_older_state_serves_are_not_stranded(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=3, keep_blocks=12)
    turn(tier, MAIN[:8], 4, 8)
    turn(tier, MAIN[:4])
    turn(tier, OTHER, 2)
    evict_states(tier, 1)
    assert restorable(tier, tier.open("", MAIN)) == 4
    assert stranded(tier, MAIN) == MAIN[7:3:-1]


def test_blocks_that_another_conversation_shares_are_not_stranded(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=2)
    turn(tier, MAIN[:8], 8)
    turn(tier, BRANCH[:6], 6)
    evict_states(tier, 1)
    assert stranded(tier, MAIN) == MAIN[7:3:-1]
    assert restorable(tier, tier.open("", BRANCH)) == 6


def test_blocks_that_a_running_request_uses_are_not_stranded(make_tier: MakeTier) -> None:
    """Its state comes at the end of its prefill, which may be a hundred steps away."""
    tier = make_tier(state_slots=1)
    turn(tier, MAIN[:4], 4)
    running = tier.open("", MAIN[:8])
    load(tier, running)
    turn(tier, OTHER, 2)
    assert stranded(tier, MAIN) == []


def test_blocks_of_a_state_that_is_being_written_are_not_stranded(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=2)
    turn(tier, MAIN[:4], 4)
    ended = tier.open("", MAIN[:8])
    in_flight = reserve(tier, ended, checkpoint(MAIN, 8)).keys
    tier.finish(ended)
    turn(tier, OTHER, 2)
    assert stranded(tier, MAIN) == []
    tier.commit(in_flight)
    assert stranded(tier, MAIN) == []


def test_stranded_blocks_that_are_offered_again_are_live(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=1)
    turn(tier, MAIN[:4], 4)
    turn(tier, OTHER, 2)
    store(tier, tier.open("", MAIN[:4]), keys(MAIN[:4], FULL))
    assert stranded(tier, MAIN) == []


# --- checkpoints whose attention blocks go first


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_a_state_without_its_last_block_goes_next(make_tier: MakeTier, policy: str) -> None:
    tier = make_tier(full_slots=9, policy=policy)
    turn(tier, MAIN[:6], 4, 6)
    turn(tier, OTHER, 2)
    turn(tier, chain("y", 2), 2)
    assert restorable(tier, tier.open("", MAIN[:6])) == 4
    for group in STATES:
        assert victims(tier, group)[0] == MAIN[5]
        assert is_demoted(tier, keys([MAIN[5]], group)) == [True]
        assert is_demoted(tier, keys([MAIN[3]], group)) == [False]


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_it_is_live_again_when_it_is_offered_again(make_tier: MakeTier, policy: str) -> None:
    tier = make_tier(full_slots=9, policy=policy)
    turn(tier, MAIN[:6], 6)
    turn(tier, OTHER, 2)
    turn(tier, chain("y", 2), 2)
    turn(tier, MAIN[:6], 6)
    assert not any(is_demoted(tier, checkpoint(MAIN, 6)))
    assert victims(tier, FIRST)[-1] == MAIN[5]


def test_a_block_that_another_tier_has_is_not_missed(make_tier: MakeTier) -> None:
    tier = make_tier(full_slots=9)
    tier.keep_what(lambda _: True)
    turn(tier, MAIN[:6], 6)
    turn(tier, OTHER, 2)
    turn(tier, chain("y", 2), 2)
    assert not any(is_demoted(tier, checkpoint(MAIN, 6)))


@pytest.mark.parametrize("option", [{"demote": False}, {"policy": "arc"}])
def test_without_demotion_nothing_is_stranded(
    make_tier: MakeTier, option: dict[str, object]
) -> None:
    tier = make_tier(state_slots=1, **option)
    turn(tier, MAIN[:4], 4)
    turn(tier, OTHER, 2)
    assert tier.counts()[FULL].demoted == 0
